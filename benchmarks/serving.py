"""Tokens per second of the embedded model server against plain transformers `generate`, on the same model, in one run.

    python -m benchmarks.serving [--model nano|FOLDER|random] [--concurrency 1 8 32] [--tiny]

Every system answers the same prompts with the same sampling (temperature 1) and the same number of new tokens on one
torch thread. The server is measured over HTTP, from the first request sent to the last answer read; transformers runs
in this process, one prompt at a time and in padded batches as large as the concurrency. Prompts share a prefix, as a
role's prompts do, and no prompt is asked twice. A second line of the server constrains its answers to a role's JSON
schema; in a third the schema lists the prompt's own sentences, and evidence is quoted from them: most tokens are then
forced. Tokens per CPU second count only the process that generates, so they hold when the machine is busy.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

# As in the server process: transformers must not get more threads than the server has.
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false")

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from agents.roles import ROLES
from agents.visit.prompting import response_format
from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.data.generated.tasks import generate
from chimera.serving.client import Endpoint
from chimera.serving.process import serve

SHARED_TOKENS, OWN_TOKENS, NEW_TOKENS = 120, 130, 60
ENDPOINT = ModelConfig(kind="endpoint", base_url="http://127.0.0.1:9/v1", model="unused")
SHAPE = {
    "hidden_size": 160,
    "intermediate_size": 448,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 1536,
    "tie_word_embeddings": True,
}
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Measured:
    """One line of the table."""

    system: str
    concurrency: int
    tokens: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Generated tokens per second."""
        return self.tokens / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano", help="'nano', a folder, or 'random' (2M random weights)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=3, help="the median of this many runs is printed")
    parser.add_argument("--tiny", action="store_true", help="2 at once, 1 repeat: shows that it runs, not how fast")
    options = parser.parse_args()
    if options.tiny:
        options.concurrency, options.repeats = [2], 1
    console = Console()
    with tempfile.TemporaryDirectory() as scratch, model_path(options.model, Path(scratch)) as path:
        results, parameters = run(path, options.concurrency, options.repeats, Path(scratch) / "server.log", console)
    table = Table(
        title=f"{options.model} ({parameters:,} parameters), 1 torch thread: prompts of {SHARED_TOKENS + OWN_TOKENS} "
        f"tokens ({SHARED_TOKENS} shared), {NEW_TOKENS} new tokens"
    )
    for name in ("system", "at once", "tokens", "seconds", "tokens/s", "against one by one", "tokens/CPU s"):
        table.add_column(name, justify="left" if name == "system" else "right")
    base = {one.concurrency: one.rate for one in results if one.system == "generate, one by one"}
    for one in results:
        table.add_row(
            one.system,
            str(one.concurrency),
            f"{one.tokens:,}",
            f"{one.seconds:.2f}",
            f"{one.rate:,.0f}",
            f"{one.rate / base[one.concurrency]:.1f} x",
            f"{one.tokens / one.cpu_seconds:,.0f}",
        )
    console.print(table)


def run(
    path: str, concurrencies: list[int], repeats: int, log_file: Path, console: Console
) -> tuple[list[Measured], int]:
    """All measurements, and the model's number of parameters."""
    from chimera.serving.embedded.checkpoint import locate

    folder = locate(path)
    results: list[Measured] = []
    model = ModelConfig(path=path)
    models = {"asked": model}
    plain = Transformers(folder)
    prompts = plain.prompts(max(8, *(2 * one for one in concurrencies)) * repeats + 1)
    for concurrency in concurrencies:
        size = max(2 * concurrency, 8)
        asked = [prompts[one * size : (one + 1) * size] for one in range(repeats)]
        # A server of its own for each line, so that no line profits from prompts that an earlier one left in the cache.
        for system, form in (("server", free), ("server, JSON schema", schema), ("server, quoted sentences", quoting)):
            with serve(models, ServingConfig(slots=16, processes=1), {}, log_file=log_file) as servers:
                work = partial(ask, servers.endpoints["asked"], concurrency=concurrency, form=form)
                asyncio.run(work(prompts[-1:]))
                process = psutil.Process(servers.pid)
                counts = [timed(process, lambda: asyncio.run(work(some))) for some in asked]  # noqa: B023 - run at once
            results.append(median(system, concurrency, counts))
        for system, batch in (("generate, one by one", 1), ("generate, batched", concurrency)):
            process = psutil.Process()
            counts = [timed(process, lambda: plain.answer(some, batch)) for some in asked]  # noqa: B023 - run at once
            results.append(median(system, concurrency, counts))
        console.print(*(f"{one.system}: {one.rate:,.0f} tokens/s" for one in results[-5:]), sep=" · ")
    return results, plain.parameters


def timed(process: psutil.Process, work: Callable[[], int]) -> tuple[int, float, float]:
    """The tokens that `work` generated, and the seconds and CPU seconds of `process` that it took."""
    cpu, start = sum(process.cpu_times()[:2]), time.perf_counter()
    tokens = work()
    return tokens, time.perf_counter() - start, sum(process.cpu_times()[:2]) - cpu


def median(system: str, concurrency: int, counts: list[tuple[int, float, float]]) -> Measured:
    rates = [tokens / seconds for tokens, seconds, _ in counts]
    return Measured(system, concurrency, *counts[rates.index(statistics.median_low(rates))])


def free(prompt: str) -> dict[str, Any]:
    return {}


def schema(prompt: str) -> dict[str, Any]:
    """Answers in a role's JSON schema."""
    return {"response_format": response_format(ROLES["Geneticist"])}


def quoting(prompt: str) -> dict[str, Any]:
    """The same schema, whose evidence must be sentences of the prompt."""
    form = response_format(ROLES["Geneticist"])
    sentences = dict.fromkeys(one.strip() for one in prompt.split(". ") if one.strip())
    form["json_schema"]["schema"]["properties"]["evidence"]["items"] = {"enum": list(sentences)}
    return {"response_format": form}


async def ask(
    endpoint: Endpoint,
    prompts: list[str],
    *,
    concurrency: int,
    form: Callable[[str], dict[str, Any]],
    socket: Path | None = None,
) -> int:
    """Ask all prompts, `concurrency` at a time, through a Unix socket if one is named; returns the generated tokens."""
    gate = asyncio.Semaphore(concurrency)

    async def one(client: httpx.AsyncClient, prompt: str) -> int:
        body = {
            "model": endpoint.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": NEW_TOKENS,
            **form(prompt),
        }
        async with gate:
            response = await client.post("/chat/completions", json=body)
        response.raise_for_status()
        return response.json()["usage"]["completion_tokens"]

    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    way = httpx.AsyncHTTPTransport(uds=str(socket)) if socket else None
    async with httpx.AsyncClient(
        base_url=endpoint.base_url, headers=headers, timeout=600, trust_env=False, transport=way
    ) as client:
        return sum(await asyncio.gather(*[one(client, prompt) for prompt in prompts]))


class Transformers:
    """The same model in transformers."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self._torch = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.parameters = sum(tensor.numel() for tensor in self._model.parameters())

    def prompts(self, count: int) -> list[str]:
        """User messages: the same beginning, then a text of their own, cut by tokens."""
        tasks = [one.task for one in generate(count + 1, seed=1, levels=[4])]
        texts = [" ".join(section.text for section in task.context) for task in tasks]

        def cut(text: str, length: int) -> str:
            return self._tokenizer.decode(self._tokenizer(text * 3, add_special_tokens=False).input_ids[:length])

        return [cut(texts[0], SHARED_TOKENS) + cut(text, OWN_TOKENS) for text in texts[1:]]

    def answer(self, prompts: list[str], batch_size: int) -> int:
        """Generate for all prompts in batches; returns the number of generated tokens, padding not counted."""
        generated = 0
        for start in range(0, len(prompts), batch_size):
            chats = [[{"role": "user", "content": prompt}] for prompt in prompts[start : start + batch_size]]
            batch = self._tokenizer.apply_chat_template(
                chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
            )
            with self._torch.inference_mode():
                output = self._model.generate(
                    **batch,
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    max_new_tokens=NEW_TOKENS,
                    pad_token_id=self._tokenizer.pad_token_id,
                )
            for row in output[:, batch["input_ids"].shape[1] :].tolist():
                ends = [place for place, token in enumerate(row) if token == self._tokenizer.eos_token_id]
                generated += ends[0] + 1 if ends else len(row)
        return generated


@contextmanager
def model_path(name: str, scratch: Path) -> Iterator[str]:
    """The model to measure; 'random' is made for the occasion, in the bundled model's size."""
    if name != "random":
        yield name
        return
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"],
        special_tokens=["<|im_start|>", "<|im_end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tasks = [one.task for one in generate(400, seed=0, levels=[1, 2, 3, 4])]
    tokenizer.train_from_iterator(
        (json.dumps({section.label: section.text for section in task.context}) for task in tasks), trainer
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>")
    fast.chat_template = TEMPLATE
    folder = scratch / "random"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    settings = Qwen2Config(**SHAPE, eos_token_id=tokenizer.token_to_id("<|im_end|>"))
    Qwen2ForCausalLM(settings).save_pretrained(folder)
    yield str(folder)


if __name__ == "__main__":
    main()
