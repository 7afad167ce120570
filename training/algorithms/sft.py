"""Supervised fine-tuning: roles imitate their own conversations from rollouts with a high reward."""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.core.plain_json import read_json_object
from chimera.data.tasks import Dataset
from chimera.run.policies import Part, Policy
from chimera.run.seals import checked, seal
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.episodes import Episode
from training.learning.fine_tuning import SftSettings

if TYPE_CHECKING:
    from training.algorithms.selection import Candidate, Example, Selected
    from training.tune.child import Spec
    from training.tune.process import SftProcess

EXAMPLES = "examples.jsonl"
"""File in the phase's folder. A line has one row of tokens and labels, and its rollout."""
MANIFEST = "sft.json"
"""File in the model's folder with the model's inputs and metrics. A folder without it is incomplete."""


class Sft:
    """Selects conversations, fine-tunes the roles' weights on them in a child process, and writes the new weights."""

    Settings = SftSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: SftSettings, config: Config, dataset: Dataset) -> None:
        if settings.batch_size % settings.micro_batch_size:
            raise ConfigError(
                f"{plan.name}.batch_size={settings.batch_size} is no multiple of {plan.name}.micro_batch_size="
                f"{settings.micro_batch_size}: make it one, so that every optimiser step takes whole micro-batches"
            )

    async def learn(self, plan: PhasePlan, settings: SftSettings, bench: Bench) -> Learned:
        """Select, train, save. A model that an earlier process finished from the same examples is kept.

        Raises:
            RunError: Too few conversations were selected, or the training process ended early.
        """

        async def chosen() -> "Selected":
            return await choose(plan, settings, bench)

        return await fine_tune(plan, settings, bench, chosen)


@dataclass(frozen=True, slots=True)
class FirstWeights:
    """The weights that a fine-tuning starts from: their folder and their version."""

    folder: Path
    version: str

    @classmethod
    def live(cls, bench: Bench, slot: str) -> "FirstWeights":
        return cls(bench.weights(slot), bench.versions[slot])


async def fine_tune(
    plan: PhasePlan,
    settings: SftSettings,
    bench: Bench,
    choose: "Callable[[], Awaitable[Selected]]",
    *,
    name: str | None = None,
    start: FirstWeights | None = None,
) -> Learned:
    """Fine-tune weights of the phase's slot on the selection of `choose`. Meanwhile the training process starts.

    Args:
        name: Of the policy, the log and the metrics, such as "star-2"; the phase's name if it is None.
        start: The weights to start from; the live ones if it is None.

    Raises:
        RunError: `choose` raised it, or the training process ended early.
    """
    from training.tune.process import SftProcess

    name, start = name or plan.name, start or FirstWeights.live(bench, plan.slot)
    policy = Policy.made("weights", plan.slot, name)
    async with SftProcess(bench.run.path / "logs" / f"{name}.log", settings.unsloth, ranks=settings.ranks) as process:
        selection = await choose()
        file = bench.run.path / "phases" / plan.name / (EXAMPLES if name == plan.name else f"{name}-{EXAMPLES}")
        await asyncio.to_thread(write_examples, file, selection.examples)
        spec = specify(settings, file, start.folder, bench.run.path / policy.folder, bench.config.seed)
        told = f"{selection.figures['selected']} conversations"
        figures = await train_once(process, spec, policy, start, bench, told, selection.figures)
    return Learned(figures, policy)


async def train_once(
    process: "SftProcess",
    spec: "Spec",
    policy: Policy,
    start: FirstWeights,
    bench: Bench,
    told: str,
    figures: Mapping[str, Any],
) -> dict[str, Any]:
    """Train, and keep the figures beside the model; a model that was made from the same before is kept.

    Args:
        told: The examples, in words.

    Raises:
        RunError: The training process ended early, or the files of the finished model are not those that it wrote.
    """
    name = policy.version.partition("@")[2]
    folder, fingerprint = bench.run.path / policy.folder, describe(spec, start.version)
    known = finished(folder, fingerprint)
    if known is not None:
        remedy = f"remove the folder {folder}, and the phase trains again from the same {told.split()[-1]}"
        await asyncio.to_thread(checked, bench.run, policy.folder, remedy)
        bench.view.note(f"{name}: {policy.version} was made from these {told} before")
        return known
    clear_drafts(folder)
    found = {**figures, **await follow(process, spec, name, bench)}
    (folder / MANIFEST).write_text(
        json.dumps({"fingerprint": fingerprint, "figures": found}, indent=2) + "\n", encoding="utf-8"
    )
    await asyncio.to_thread(seal, bench.run, policy.folder)
    return found


async def choose(plan: PhasePlan, settings: SftSettings, bench: Bench) -> "Selected":
    """Select conversations from earlier rollouts with a reward.

    Raises:
        RunError: A trace cannot be read, or too few conversations are left.
    """
    from training.algorithms.selection import select
    from training.tune.render import Renderer

    found: list[Candidate] = []
    for episode in await bench.episodes():
        # One thread call per rollout: the event loop stays free, and an interrupted run waits for at most one trace.
        found += await asyncio.to_thread(read_candidates, episode, plan.roles)
    version = bench.versions[plan.slot]
    own = [candidate for candidate in found if candidate.conversation.weights_version == version]
    renderer = Renderer(bench.weights(plan.slot), bench.config.society.max_tool_calls)
    selection = await asyncio.to_thread(select, own, renderer.rows, settings, plan.name)
    figures: dict[str, Any] = selection.figures | {"stale": len(found) - len(own)}
    of_role = ", ".join(f"{role} {count}" for role, count in figures["selected_by_role"].items())
    bench.view.note(
        f"{plan.name}: {figures['selected']} of {len(own)} conversations ({of_role}), mean reward "
        f"{figures['reward_of_selected']:.3f} (of all {figures['reward_of_candidates']:.3f})"
    )
    if figures["stale"]:
        bench.view.note(f"{plan.name}: {figures['stale']} conversations by other weights than {version} are left out")
    if figures["misquoting_kept"]:
        bench.view.warn(
            f"{plan.name}: too few of these conversations quote what they have read, so misquoting ones are learned "
            f"from too: gather more, or set {plan.name}.true_quotes=require"
        )
    return replace(selection, figures=figures)


def read_candidates(episode: Episode, roles: Sequence[str]) -> "list[Candidate]":
    """The candidate conversations of one rollout; raises RunError if its trace cannot be read."""
    from training.algorithms.selection import candidates

    if episode.record.reward is None:
        return []
    return candidates(episode.record, episode.conversations(roles))


def write_examples(file: Path, examples: "Sequence[Example]") -> None:
    """Write one line for each row of tokens."""
    file.parent.mkdir(parents=True, exist_ok=True)
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


def specify(settings: SftSettings, examples: Path, model: Path, folder: Path, seed: int) -> "Spec":
    """Make the child process's spec."""
    from training.tune.child import Spec

    return Spec(
        dataset=str(examples.absolute()),
        model=str(model.absolute()),
        out=str(folder.absolute()),
        seed=seed,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        micro_batch_size=settings.micro_batch_size,
        lr=settings.lr,
        warmup_ratio=settings.warmup_ratio,
        max_length=settings.max_length,
        lora_rank=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        unsloth=settings.unsloth,
    )


def describe(spec: "Spec", version: str) -> str:
    """SHA-256 of everything that determines the weights: examples, initial weights, hyperparameters."""
    examples = hashlib.sha256(Path(spec.dataset).read_bytes()).hexdigest()
    return hashlib.sha256(f"{version}\n{examples}\n{spec.dump()}".encode()).hexdigest()


def finished(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """The metrics of the model in `folder` if its fingerprint is equal; None otherwise."""
    try:
        manifest = read_json_object(folder / MANIFEST)
        known, figures = manifest["fingerprint"], manifest["figures"]
    except (FileNotFoundError, ValueError, KeyError):
        return None  # Not begun, or ended before the manifest was written. Training again gives the same weights.
    return figures if known == fingerprint else None


def clear_drafts(folder: Path) -> None:
    """Remove drafts of a process that was killed while it was writing."""
    for draft in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(draft, ignore_errors=True)


async def follow(process: "SftProcess", spec: "Spec", phase: str, bench: Bench) -> dict[str, Any]:
    """Let the child train, show and log every step, and return the final metrics.

    Raises:
        RunError: The child ended before it was done.
    """
    figures: dict[str, Any] = {}
    async with bench.computing():
        reports = process.train(spec)
        total = (await anext(reports))["total"]
        with bench.view.work(phase, total) as advance:
            async for report in reports:
                figures = {key: value for key, value in report.items() if key not in ("event", "step", "total")}
                if report["event"] == "step":
                    advance(report["step"], f"loss {report['loss']:.4f}, learning rate {report['lr']:.2g}")
                    bench.metrics.log(phase, report["step"], figures)
    return figures
