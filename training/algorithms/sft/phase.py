"""The sft phase: juniors imitate their own conversations from rollouts that earned a high reward."""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.roles import JUNIORS
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.core.plain_json import read_json_object
from chimera.data.tasks import Dataset
from chimera.run.directory import phases_before
from chimera.run.policies import Policy
from chimera.run.seals import checked, seal
from evaluation.records.rollouts import RolloutRecord
from training.phases import PhaseResult

if TYPE_CHECKING:
    from training.algorithms.sft.child import Spec
    from training.algorithms.sft.process import SftProcess
    from training.algorithms.sft.select import Candidate, Example, Selection
    from training.lab.lab import Lab
    from training.learning.adapter import HierarchicalTraceAdapter

POLICY = Policy("junior", "junior@sft", "models/junior/sft")
EXAMPLES = Path("sft") / "examples.jsonl"
"""What was learned from: one row a line, with the rollout it comes from and its tokens and labels."""
MANIFEST = "sft.json"
"""In the model's folder: what it was made from and what came out. A folder without it is not complete."""


class Sft:
    """Selects conversations, fine-tunes the juniors' model on them in its own process, and leaves the new weights."""

    name = "sft"
    learns = True

    def check(self, config: Config, dataset: Dataset) -> None:
        """Raise ConfigError if the juniors' model cannot be trained here, or the batch cannot be split evenly."""
        kind, sft = config.models.junior.kind, config.sft
        if kind != "embedded":
            raise ConfigError(
                f"the phase sft trains the juniors' weights, and models.junior.kind={kind} has none here: set "
                "models.junior.kind=embedded with a model folder in models.junior.path, or leave sft out of --phases"
            )
        if sft.batch_size % sft.micro_batch_size:
            raise ConfigError(
                f"sft.batch_size={sft.batch_size} is no multiple of sft.micro_batch_size={sft.micro_batch_size}: "
                "make it one, so that every optimiser step takes whole micro-batches"
            )

    async def run(self, lab: "Lab") -> PhaseResult:
        """Select, train, save. A model that a run before this one finished from the same examples is kept.

        Raises:
            RunError: Too few conversations were worth imitating, or the process that trains ended early.
        """
        from training.algorithms.sft.process import SftProcess

        folder = lab.run.path / POLICY.folder
        async with SftProcess(lab.run.path / "logs" / "sft.log", lab.config.sft.unsloth) as process:
            selection = await choose(lab)
            await asyncio.to_thread(write_examples, lab.run.path / EXAMPLES, selection.examples)
            spec = specify(lab, folder)
            fingerprint = describe(spec, lab.policy_versions["junior"])
            figures = finished(folder, fingerprint)
            if figures is None:
                clear_drafts(folder)
                figures = {**selection.figures, **await follow(process, spec, lab)}
                (folder / MANIFEST).write_text(
                    json.dumps({"fingerprint": fingerprint, "figures": figures}, indent=2) + "\n", encoding="utf-8"
                )
                await asyncio.to_thread(seal, lab.run, POLICY.folder)
            else:
                remedy = f"remove the folder {folder}, and the phase trains again from the same conversations"
                await asyncio.to_thread(checked, lab.run, POLICY.folder, remedy)
                lab.view.note(f"sft: {POLICY.version} was made from these {figures['selected']} conversations before")
        return PhaseResult(figures, POLICY)


async def choose(lab: "Lab") -> "Selection":
    """Read the traces of the earlier phases' rollouts with a reward, and select from their conversations.

    A phase that is done again learns from what it had the first time: later phases' rollouts are answers of what was
    learned from it.

    Raises:
        RunError: A trace cannot be read, or too few conversations are left.
    """
    from training.algorithms.sft.render import Renderer
    from training.algorithms.sft.select import select
    from training.learning.adapter import HierarchicalTraceAdapter

    adapter = HierarchicalTraceAdapter(lab.config.reward)
    found: list[Candidate] = []
    earlier = phases_before(lab.run.events(), Sft.name)
    for record in await lab.gathered():
        if earlier is not None and record.phase not in earlier:
            continue
        # A thread for each rollout: the loop goes on meanwhile, and an interrupted run waits for one trace at most.
        found += await asyncio.to_thread(read_candidates, lab.run.path, record, adapter)
    renderer = Renderer(lab.weights_folder("junior"), lab.config.society.max_tool_calls)
    selection = await asyncio.to_thread(select, found, renderer.rows, lab.config.sft)
    of_role = ", ".join(f"{role} {count}" for role, count in selection.figures["selected_by_role"].items())
    lab.view.note(
        f"sft: {selection.figures['selected']} of {len(found)} conversations ({of_role}), mean reward "
        f"{selection.figures['reward_of_selected']:.3f} (of all {selection.figures['reward_of_candidates']:.3f})"
    )
    if selection.figures["misquoting_kept"]:
        lab.view.warn(
            "sft: too few of these conversations quote what they have read, so misquoting ones are learned from too: "
            "gather more (gather.tasks), or set sft.true_quotes=require"
        )
    return selection


def read_candidates(run: Path, record: RolloutRecord, adapter: "HierarchicalTraceAdapter") -> "list[Candidate]":
    """The conversations of one rollout that could be learned from.

    Raises:
        RunError: Its trace cannot be read.
    """
    from training.algorithms.sft.select import candidates
    from training.learning import traces

    if record.reward is None or record.trace is None:
        return []
    return candidates(record, adapter.adapt_for_sft(traces.read(run / record.trace), JUNIORS))


def write_examples(file: Path, examples: "Sequence[Example]") -> None:
    """One line for each row of tokens."""
    file.parent.mkdir(exist_ok=True)
    with file.open("w", encoding="utf-8") as lines:
        for example in examples:
            record = example.candidate.record
            source = {
                "phase": record.phase,
                "task_id": record.task_id,
                "repeat": record.repeat,
                "role": example.candidate.role,
                "reward": example.candidate.reward,
            }
            for row in example.rows:
                lines.write(json.dumps({**source, "input_ids": row.ids, "labels": row.labels}) + "\n")


def specify(lab: "Lab", folder: Path) -> "Spec":
    """What the child process is told."""
    from training.algorithms.sft.child import Spec

    sft = lab.config.sft
    return Spec(
        dataset=str((lab.run.path / EXAMPLES).absolute()),
        model=str(lab.weights_folder("junior").absolute()),
        out=str(folder.absolute()),
        seed=lab.config.seed,
        epochs=sft.epochs,
        batch_size=sft.batch_size,
        micro_batch_size=sft.micro_batch_size,
        lr=sft.lr,
        warmup_ratio=sft.warmup_ratio,
        max_length=sft.max_length,
        lora_rank=sft.lora_rank,
        lora_alpha=sft.lora_alpha,
        unsloth=sft.unsloth,
    )


def describe(spec: "Spec", version: str) -> str:
    """SHA-256 of all that the weights depend on: examples, first weights, hyperparameters."""
    examples = hashlib.sha256(Path(spec.dataset).read_bytes()).hexdigest()
    return hashlib.sha256(f"{version}\n{examples}\n{spec.dump()}".encode()).hexdigest()


def finished(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """The figures of the model in `folder` if it was made from exactly this; None otherwise."""
    try:
        manifest = read_json_object(folder / MANIFEST)
        known, figures = manifest["fingerprint"], manifest["figures"]
    except (FileNotFoundError, ValueError, KeyError):
        return None  # Never begun, or the run ended before the manifest was written: train again, to the same end.
    return figures if known == fingerprint else None


def clear_drafts(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left."""
    for draft in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(draft, ignore_errors=True)


async def follow(process: "SftProcess", spec: "Spec", lab: "Lab") -> dict[str, Any]:
    """Have the child train, show and log every step; returns what it came to.

    Raises:
        RunError: It ended before it was done.
    """
    reports = process.train(spec)
    total = (await anext(reports))["total"]
    figures: dict[str, Any] = {}
    with lab.view.work(Sft.name, total) as advance:
        async for report in reports:
            figures = {key: value for key, value in report.items() if key not in ("event", "step", "total")}
            if report["event"] == "step":
                advance(report["step"], f"loss {report['loss']:.4f}, learning rate {report['lr']:.2g}")
                lab.metrics.log(Sft.name, report["step"], figures)
    return figures
