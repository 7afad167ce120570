"""The parent's side of a fine-tuning: what its process learns from, its job, and the model that it leaves.

A model that an earlier process finished from the same data and settings is kept. From equal data it learns equal
weights, bit for bit.
"""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from chimera.core.files import read_json_object
from chimera.run.policies import Policy
from chimera.run.seals import checked, seal
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.examples import FirstWeights, Render, TrainingData
from training.learning.fine_tuning import TuneSettings
from training.tune.child import Spec
from training.tune.dpo_child import DpoSpec
from training.tune.process import TuningProcess
from training.tune.render import Renderer

EXAMPLES, PAIRS, HELD_OUT = "examples.jsonl", "pairs.jsonl", "held-out-pairs.jsonl"
"""Files in the phase's folder: a row of tokens and labels a line, with its rollout; or a pair of answers."""
MANIFEST = "sft.json"
"""File in the model's folder with the model's inputs and metrics. A folder without it is incomplete."""
SFT_CHILD, DPO_CHILD = "training.tune.child", "training.tune.dpo_child"


async def fine_tune(
    bench: Bench,
    plan: PhasePlan,
    settings: TuneSettings,
    choose: Callable[[Render], Awaitable[TrainingData]],
    *,
    name: str | None = None,
    start: FirstWeights | None = None,
    beta: float | None = None,
    imitation: float = 0.0,
) -> Learned:
    """See `training.learning.base.Bench.fine_tune`."""
    name = name or plan.name
    start = start or FirstWeights(bench.weights(plan.slot), bench.versions[plan.slot])
    policy = Policy.made("weights", plan.slot, name)
    log_file = bench.run.path / "logs" / f"{name}.log"
    # One process compares pairs.
    child, ranks = (SFT_CHILD, settings.ranks) if beta is None else (DPO_CHILD, 1)
    async with TuningProcess(log_file, settings.unsloth, child, ranks=ranks) as process:
        data = await choose(Renderer(bench.weights(plan.slot), bench.config.society.max_tool_calls).rows)
        prefix = "" if name == plan.name else f"{name}-"
        file = bench.run.path / "phases" / plan.name / f"{prefix}{EXAMPLES if beta is None else PAIRS}"
        await asyncio.to_thread(write_lines, file, data.lines())
        spec = specify(settings, file, start.folder, bench.run.path / policy.folder, bench.config.seed)
        if beta is not None:
            held_out = file.with_name(f"{prefix}{HELD_OUT}")
            await asyncio.to_thread(write_lines, held_out, data.held_out())
            spec = DpoSpec(**asdict(spec), held_out=str(held_out.absolute()), beta=beta, imitation=imitation)
        kind = "conversations" if beta is None else "pairs"
        figures = await _train_once(process, spec, policy, start.version, bench, data, kind)
    return Learned(figures, policy)


async def _train_once(
    process: TuningProcess, spec: Spec, policy: Policy, version: str, bench: Bench, data: TrainingData, kind: str
) -> dict[str, Any]:
    """Train, and keep the figures beside the model; a model that was made from the same before is kept.

    Raises:
        RunError: The training process ended early, or the files of the finished model are not those that it wrote.
    """
    name = policy.version.partition("@")[2]
    folder, digest = bench.run.path / policy.folder, fingerprint(spec, version)
    if (earlier := finished(folder, digest)) is not None:
        remedy = f"remove the folder {folder}, and the phase trains again from the same {kind}"
        await asyncio.to_thread(checked, bench.run, policy.folder, remedy)
        bench.view.note(f"{name}: {policy.version} was made from these {len(data)} {kind} before")
        return earlier
    for draft in folder.parent.glob(f".{folder.name}.*"):  # Of a process that was killed while it was writing.
        shutil.rmtree(draft, ignore_errors=True)
    figures = {**data.figures, **await _follow(process, spec, name, bench)}
    manifest = json.dumps({"fingerprint": digest, "figures": figures}, indent=2) + "\n"
    (folder / MANIFEST).write_text(manifest, encoding="utf-8")
    await asyncio.to_thread(seal, bench.run, policy.folder)
    return figures


def write_lines(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def specify(settings: TuneSettings, examples: Path, model: Path, folder: Path, seed: int) -> Spec:
    """Make the child process's job."""
    paths = {"dataset": str(examples.absolute()), "model": str(model.absolute()), "out": str(folder.absolute())}
    names = [field.name for field in fields(Spec) if field.name not in (*paths, "seed")]
    return Spec(**paths, seed=seed, **{name: getattr(settings, name) for name in names})


def fingerprint(spec: Spec, version: str) -> str:
    """SHA-256 of everything that determines the weights: examples, initial weights, hyperparameters."""
    examples = hashlib.sha256(Path(spec.dataset).read_bytes()).hexdigest()
    return hashlib.sha256(f"{version}\n{examples}\n{spec.dump()}".encode()).hexdigest()


def finished(folder: Path, digest: str) -> dict[str, Any] | None:
    """The figures of the model in `folder` if its fingerprint is `digest`; None otherwise."""
    try:
        manifest = read_json_object(folder / MANIFEST)
        stored_digest, figures = manifest["fingerprint"], manifest["figures"]
    except (FileNotFoundError, ValueError, KeyError):
        return None  # Not begun, or ended before the manifest was written. Training again gives the same weights.
    return figures if stored_digest == digest else None


async def _follow(process: TuningProcess, spec: Spec, phase: str, bench: Bench) -> dict[str, Any]:
    """Let the child train, show and log every step, and return the final metrics.

    Raises:
        RunError: The child ended before it was done.
    """
    figures: dict[str, Any] = {}
    async with bench.computing():
        reports = process.train(spec)
        begin = await anext(reports)
        earlier, total = begin["done"], begin["total"]
        if earlier:
            bench.view.note(f"{phase}: goes on after step {earlier} of {total}")
        with bench.view.work(phase, total - earlier) as advance:
            async for report in reports:
                figures = {key: value for key, value in report.items() if key not in ("event", "step", "total")}
                if report["event"] == "step":
                    advance(report["step"] - earlier, f"loss {report['loss']:.4f}, learning rate {report['lr']:.2g}")
                    bench.metrics.log(phase, report["step"], figures)
    return figures
