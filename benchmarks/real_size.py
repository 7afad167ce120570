"""Seconds and peak memory of serving, asking, fine-tuning and PPO with a model of real size, each in its own process.

    python -m benchmarks.real_size [--size 0.5b|1.5b|3b|qwen3-0.6b|llama-1b] [--layers N] [--vocabulary FILE]
                                   [--steps serve-bfloat16,ppo,...] [--vllm PYTHON] [--tiny]

The model is made for the occasion: a shape of Qwen2.5, Qwen3 or Llama 3.2 with random weights, so nothing is
downloaded. It takes as long and as much memory as the true one; with --layers it is less deep. With a vocabulary file
(the Python package `dashscope` ships Qwen's) its tokens are the true ones too; without one it has the bundled model's
tokens, and as many embeddings as the true model. Its answers mean nothing: without an end that it learned, each is as
long as its limit.

The step `mismatch` compares log-probabilities: the server's in float32 and bfloat16 with those of transformers in
float32, of the same tokens. The step `beside-vllm` asks this server and vLLM's by turns, so that what else the machine
does slows both alike. Memory is the sum over a step's processes, looked at ten times a second.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from agents.roles import ROLES
from agents.visit.prompting import response_format
from benchmarks.random_model import SIZES, make
from chimera.config.sections.models import ModelConfig, Precision, ServingConfig

if TYPE_CHECKING:
    from chimera.serving.client import Endpoint

PROMPT, NEW = 250, 64
"""Tokens of a prompt and of an answer, where tokens a second are measured."""
VLLM = "beside-vllm"


@dataclass(frozen=True)
class Load:
    """How much each step computes, and with how many torch threads."""

    threads: int
    calls: int
    vllm: str | None = None
    """The Python of an environment with vLLM."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.5b")
    parser.add_argument("--layers", type=int, metavar="N", help="fewer than the true model has")
    parser.add_argument("--vocabulary", type=Path, metavar="FILE", help="a tiktoken file")
    parser.add_argument("--steps", help=f"of {', '.join(STEPS)}; all without it, {VLLM} only with --vllm")
    parser.add_argument("--vllm", metavar="PYTHON", help="the Python of an environment with vLLM")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of each step")
    parser.add_argument("--calls", type=int, default=8, help="examples of an SFT step, and calls of a PPO update")
    parser.add_argument("--tiny", action="store_true", help="a small model, served only: shows that it runs")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        load = Load(options.threads, options.calls, options.vllm)
        print(json.dumps(STEPS[options.step](options.folder, load)))
        return
    if options.tiny:
        options.size, options.steps = "tiny", "serve-bfloat16"
    options.steps = options.steps or ",".join(name for name in STEPS if options.vllm or name != VLLM)
    unknown = set(options.steps.split(",")) - STEPS.keys()
    if VLLM in options.steps and not options.vllm:
        parser.error(f"--steps {VLLM} needs --vllm PYTHON")
    if unknown:
        parser.error(f"--steps: there is no step {sorted(unknown)[0]!r}, only {', '.join(STEPS)}")
    console = Console()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        size = SIZES[options.size]
        size = replace(size, layers=options.layers or size.layers)
        parameters = make(folder, size, options.vocabulary)
        console.print(f"{parameters / 1e6:,.0f} million random weights: {4 * parameters / 2**30:.1f} GiB as float32")
        title = f"{options.size}, {size.layers} layers, {options.threads} threads"
        table = Table("step", "seconds", "peak GiB", "figures", title=title)
        for step in options.steps.split(","):
            seconds, peak, figures = measure(step, folder, Load(options.threads, options.calls, options.vllm))
            shown = "; ".join(f"{name} {value}" for name, value in figures.items())
            console.print(f"{step}: {seconds:.1f} s, {peak:.1f} GiB; {shown}", soft_wrap=True)
            table.add_row(step, f"{seconds:.1f}", f"{peak:.1f}", shown)
        console.print(table)


def measure(step: str, folder: Path, load: Load) -> tuple[float, float, dict[str, Any]]:
    """Run one step in a process of its own; its seconds, the peak of its processes' memory in GiB, and its figures."""
    command = [sys.executable, "-m", "benchmarks.real_size", "--step", step, "--folder", str(folder)]
    began = time.perf_counter()
    command += ["--threads", str(load.threads), "--calls", str(load.calls)]
    command += ["--vllm", load.vllm] if load.vllm else []
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            with suppress(psutil.Error):
                first = psutil.Process(child.pid)
                peak[0] = max(peak[0], sum(memory_of(process) for process in (first, *first.children(recursive=True))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    printed, _ = child.communicate()
    done.set()
    watcher.join()
    if child.returncode:
        return time.perf_counter() - began, peak[0] / 2**30, {"it ended with exit code": child.returncode}
    return time.perf_counter() - began, peak[0] / 2**30, json.loads(printed.strip().splitlines()[-1])


def memory_of(process: psutil.Process) -> int:
    """Bytes of memory of a process; 0 if it has ended."""
    with suppress(psutil.Error):
        return process.memory_info().rss
    return 0


def serve_alone(folder: Path, load: Load, *, dtype: Precision) -> dict[str, Any]:
    """The embedded server."""
    from chimera.serving.process import serve

    models = {"asked": ModelConfig(path=str(folder), dtype=dtype)}
    began = time.perf_counter()
    with serve(
        models, ServingConfig(slots=8, threads=load.threads), {}, log_file=folder.parent / "server.log"
    ) as servers:
        endpoint = servers.endpoints["asked"]
        server = psutil.Process(servers.pid)
        figures: dict[str, Any] = {"ready after s": round(time.perf_counter() - began, 1)}
        figures["GiB then"] = round(memory_of(server) / 2**30, 2)
        texts = prompts(folder, 20)
        schema = {"response_format": response_format(ROLES["Geneticist"])}
        asyncio.run(ask(endpoint, texts[:1], concurrency=1))
        for name, some, at_once, form in (
            ("one request, tokens/s", texts[1:3], 1, None),
            ("eight", texts[3:11], 8, None),
            ("eight in a schema", texts[11:19], 8, schema),
        ):
            start = time.perf_counter()
            tokens = asyncio.run(ask(endpoint, some, concurrency=at_once, form=form))
            figures[name] = round(tokens / (time.perf_counter() - start), 1)
        figures["GiB at the end"] = round(memory_of(server) / 2**30, 2)
        start = time.perf_counter()
        servers.load_weights("asked", folder, version="again")
        figures["new weights after s"] = round(time.perf_counter() - start, 1)
    return figures


def beside_vllm(folder: Path, load: Load) -> dict[str, Any]:
    """Tokens a second of the embedded server and of vLLM by turns, in float32 and bfloat16; the better of 2 turns."""
    from chimera.serving.process import serve

    serving = ServingConfig(slots=8, threads=load.threads)
    dtypes: tuple[Precision, ...] = ("float32", "bfloat16")
    texts = prompts(folder, 19)
    best: dict[str, float] = {}
    for dtype in dtypes:
        models = {"asked": ModelConfig(path=str(folder), dtype=dtype)}
        log = folder.parent / "server.log"
        with serve(models, serving, {}, log_file=log) as ours, vllm(folder, load, serving, dtype) as (endpoint, socket):
            servers = {"embedded": (ours.endpoints["asked"], None), "vLLM": (endpoint, socket)}
            for place, uds in servers.values():
                asyncio.run(ask(place, texts[:1], concurrency=1, socket=uds))
            for turn in range(2):
                for at_once, some in ((1, texts[1 + turn : 2 + turn]), (8, texts[3 + 8 * turn : 11 + 8 * turn])):
                    for name, (place, uds) in servers.items():
                        start = time.perf_counter()
                        tokens = asyncio.run(ask(place, some, concurrency=at_once, socket=uds))
                        key = f"{dtype}, {at_once} at once, {name}"
                        best[key] = max(best.get(key, 0.0), tokens / (time.perf_counter() - start))
    return {name: f"{rate:.1f} tokens/s" for name, rate in best.items()}


async def ask(
    endpoint: "Endpoint",
    prompts: list[str],
    *,
    concurrency: int,
    form: Mapping[str, Any] | None = None,
    socket: Path | None = None,
) -> int:
    """Ask all prompts, `concurrency` at a time, through a Unix socket if one is named; returns the generated tokens."""
    gate = asyncio.Semaphore(concurrency)

    async def request(client: httpx.AsyncClient, prompt: str) -> int:
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": NEW}
        async with gate:
            response = await client.post("/chat/completions", json={**body, **(form or {})})
        response.raise_for_status()
        return response.json()["usage"]["completion_tokens"]

    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    way = httpx.AsyncHTTPTransport(uds=str(socket)) if socket else None
    async with httpx.AsyncClient(
        base_url=endpoint.base_url, headers=headers, timeout=600, trust_env=False, transport=way
    ) as client:
        return sum(await asyncio.gather(*[request(client, prompt) for prompt in prompts]))


@contextmanager
def vllm(folder: Path, load: Load, serving: ServingConfig, dtype: Precision) -> "Iterator[tuple[Endpoint, Path]]":
    """A vLLM server of the model: its endpoint and its socket."""
    from chimera.processes.children import stop
    from chimera.serving.client import Endpoint
    from chimera.serving.vllm.engine import SERVED, start_engine
    from chimera.serving.vllm.replicas import Replica, wait_for

    model = ModelConfig(kind="vllm", path=str(folder), dtype=dtype, python=load.vllm, cache_gib=0.5)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        socket = Path(short) / "vllm"
        log = folder.parent / "vllm.log"
        program = start_engine(model, serving, 0, folder, socket, log, "vLLM", "a-key")
        try:
            server = Replica("vLLM", "http://vllm", "a-key", socket=socket, program=program)
            asyncio.run(wait_for(server, time.monotonic() + 600))
            yield Endpoint("http://vllm/v1", SERVED, "a-key"), socket
        finally:
            stop([program], seconds=10)


def prompts(folder: Path, count: int) -> list[str]:
    """User messages of `PROMPT` tokens: texts of generated tasks."""
    from tokenizers import Tokenizer

    from chimera.data.generated.tasks import generate

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tasks = [generated_task.task for generated_task in generate(count, seed=1, levels=[4])]
    texts = [" ".join(section.text for section in task.context) * 4 for task in tasks]
    return [tokenizer.decode(tokenizer.encode(text).ids[:PROMPT]) for text in texts]


def mismatch(folder: Path, load: Load) -> dict[str, Any]:
    """How far the server's log-probabilities are from transformers' in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    from chimera.serving.process import serve

    torch.set_num_threads(load.threads)
    answers: dict[str, list[dict[str, Any]]] = {}
    for dtype in ("float32", "bfloat16"):
        models = {"asked": ModelConfig(path=str(folder), dtype=dtype)}
        log = folder.parent / "server.log"
        with serve(models, ServingConfig(slots=8, threads=load.threads), {}, log_file=log) as servers:
            endpoint = servers.endpoints["asked"]
            headers = {"Authorization": f"Bearer {endpoint.api_key}"}
            with httpx.Client(base_url=endpoint.base_url, headers=headers, timeout=600, trust_env=False) as client:
                answers[dtype] = []
                for text in prompts(folder, 4):
                    body = {"model": endpoint.model, "messages": [{"role": "user", "content": text}], "seed": 1}
                    body |= {"max_tokens": NEW, "logprobs": True, "return_token_ids": True}
                    answers[dtype].append(client.post("/chat/completions", json=body).raise_for_status().json())
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    figures: dict[str, Any] = {}
    for dtype, some in answers.items():
        apart = torch.cat([_apart(model, answer) for answer in some])
        figures[f"{dtype}: mean"] = f"{apart.mean():.1e}"
        figures[f"{dtype}: largest"] = f"{apart.max():.1e}"
    return figures


def _apart(model: Any, answer: Mapping[str, Any]) -> Any:
    """Absolute differences (n,) between told and computed log-probabilities of one answer's tokens."""
    import torch

    prompt, (choice,) = answer["prompt_token_ids"], answer["choices"]
    server_log_probs = torch.tensor([token["logprob"] for token in choice["logprobs"]["content"]])
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + choice["token_ids"]])).logits[0, len(prompt) - 1 : -1]
    chosen = torch.tensor(choice["token_ids"])[:, None]
    return (server_log_probs - torch.log_softmax(logits, -1).gather(1, chosen)[:, 0]).abs()


def society(folder: Path, load: Load) -> dict[str, Any]:
    """One rollout of the whole society, its answers limited to 200 tokens, which the random model always reaches."""
    from chimera.data import tasks
    from chimera.serving.client import HttpModel
    from chimera.serving.process import serve
    from evaluation.probes.rollout import rollout_finding
    from training.configuration import load_config

    settings = [f"models.junior.path={folder}", "models.junior.dtype=bfloat16", "models.junior.timeout_s=600"]
    settings += ["models.junior.max_tokens=200", "data.size=40", f"serving.threads={load.threads}"]
    config = load_config(overrides=settings)
    data = tasks.load(config.data)

    async def play() -> str:
        from agents.tools.toolbox import build_toolbox

        tools = build_toolbox(config.tools, data.documents(), {}, roles=config.roles, conclusions=data.conclusions())
        with serve(config.served(), config.serving, {}, log_file=folder.parent / "server.log") as servers:
            model = HttpModel(servers.endpoints)
            try:
                return (await rollout_finding(config, model, tools, data.train[0].brief())).text
            finally:
                await model.aclose()

    return {"rollout": asyncio.run(play())[:200]}


def sft(folder: Path, load: Load, *, rank: int = 0) -> dict[str, Any]:
    """One optimiser step of fine-tuning on examples of 512 tokens: all weights, or LoRA that is merged at the end."""
    from training.tune.child import Spec
    from training.tune.process import TuningProcess

    tokens = list(range(300, 812))
    rows = folder.parent / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"input_ids": tokens, "labels": [-100] * 256 + tokens[256:]}) + "\n" for _ in range(load.calls)
        )
    )
    out = folder.parent / f"sft-{rank}"
    spec = Spec(
        dataset=str(rows), model=str(folder), out=str(out), seed=0, epochs=1, batch_size=load.calls, micro_batch_size=1,
        lr=1e-5, warmup_ratio=0.0, max_length=1024, lora_rank=rank, lora_alpha=32, unsloth="never",
    )  # fmt: skip

    async def train() -> list[dict[str, Any]]:
        async with TuningProcess(folder.parent / "sft.log", "never") as process:
            return [report async for report in process.train(spec)]

    reports = asyncio.run(train())
    return {"steps": sum(report["event"] == "step" for report in reports), "written": (out / "config.json").is_file()}


def ppo(folder: Path, load: Load, *, rank: int = 0) -> dict[str, Any]:
    """One PPO update of calls of 256 tokens each, and the folder written: all weights, or LoRA that is merged there."""
    import torch

    from training.ppo.engine.batch import Sample
    from training.ppo.engine.update import PpoEngine
    from training.ppo.verl.settings import PpoSettings

    settings = PpoSettings(lora_rank=rank, ppo_mini_batch_size=load.calls, ppo_max_token_len_per_gpu=512)
    samples = [
        Sample(
            tuple(range(300, 428)),
            tuple(range(500 + 128 * place, 628 + 128 * place)),
            place / load.calls,
            group="one",
            task="",
        )
        for place in range(load.calls)
    ]
    torch.set_num_threads(load.threads)
    engine = PpoEngine(folder, settings, seed=0, total_steps=1)
    start = time.perf_counter()
    engine.update(samples, 0)
    figures: dict[str, Any] = {"update s": round(time.perf_counter() - start, 1)}
    start = time.perf_counter()
    engine.export(folder.parent / f"ppo-{rank}")
    figures["written after s"] = round(time.perf_counter() - start, 1)
    engine.close()
    return figures


STEPS: Mapping[str, Callable[[Path, Load], dict[str, Any]]] = {
    "serve-float32": partial(serve_alone, dtype="float32"),
    "serve-bfloat16": partial(serve_alone, dtype="bfloat16"),
    VLLM: beside_vllm,
    "mismatch": mismatch,
    "society": society,
    "sft": sft,
    "sft-lora": partial(sft, rank=16),
    "ppo": ppo,
    "ppo-lora": partial(ppo, rank=16),
}


if __name__ == "__main__":
    main()
