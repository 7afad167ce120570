"""Step DPO: of two answers to one recorded prompt, the weights learn to prefer the one that is worth more.

The answers are branches (`training.learning.base.Bench.branch`), as in AgentQ (arXiv 2408.07199), where a tree search
gives them. A tenth of the states is held out: how many of their pairs are won tells whether anything general was
learned. The trainer gets the server's own token ids.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.data.tasks import Dataset
from chimera.run.policies import Part, Policy
from training.algorithms.pairs import AnswerPair, all_pairs, hold_out
from training.algorithms.sft import FirstWeights, Sft, specify, train_once
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.fine_tuning import SftSettings
from training.learning.groups import BranchSettings, group_figures, grow
from training.learning.states import check_tasks, collect_states
from training.learning.values import Values, how_valued

if TYPE_CHECKING:
    from training.tune.dpo_child import DpoSpec

CHILD = "training.tune.dpo_child"
PAIRS, HELD_OUT = "pairs.jsonl", "held-out-pairs.jsonl"
"""Files in the phase's folder: a pair of answers a line, as token ids."""
SELECTING = ("select", "quantile", "threshold", "credited", "true_quotes")


class DpoSettings(SftSettings, BranchSettings):
    """Learning from pairs of answers to one prompt. Batches count pairs."""

    answers: int = Field(default=8, ge=2, le=100_000, description="answers to each prompt")
    pairs: int = Field(default=2, ge=1, le=100_000, description="pairs of one prompt that are learned, at most")
    keep_right: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="further pairs that prefer keeping the prompt's right hypothesis to changing it, as a share",
    )
    held_out: float = Field(default=0.1, ge=0, lt=1, description="share of the prompts whose pairs are not trained on")
    beta: float = Field(default=0.1, gt=0, le=100, description="weight of the distance from the first weights")
    lr: float = Field(
        default=1e-4, gt=0, le=10, description="peak learning rate; real models want 5e-7 to 5e-6, LoRA ten times that"
    )
    max_length: int = Field(
        default=2048, ge=32, le=1_000_000, description="longer pairs are left out and counted, in tokens of the longer"
    )

    def needs_rollouts(self) -> bool:
        return self.tasks == 0

    def unused(self) -> Mapping[str, str]:
        found = {**super().unused(), **dict.fromkeys(SELECTING, "dpo compares answers to one prompt")}
        return found | {"ranks": "one process compares pairs"}


class Dpo:
    """Draws answers, makes pairs, and trains the roles' weights on them in a child process."""

    Settings = DpoSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: DpoSettings, config: Config, dataset: Dataset) -> None:
        Sft().check(plan, settings, config, dataset)
        if config.models[plan.slot].temperature == 0:
            raise ConfigError(
                f"models.{plan.slot}.temperature=0 always gives the same answer, and {plan.name} compares different "
                "ones: set it to 1"
            )
        how_valued(plan, settings.reward, settings.value, config)
        check_tasks(plan, settings.tasks, dataset, config.seed)

    async def learn(self, plan: PhasePlan, settings: DpoSettings, bench: Bench) -> Learned:
        """Draw, pair, train. A model that an earlier process finished from the same pairs is kept.

        Raises:
            RunError: There are too few pairs, or the training process ended early.
        """
        from training.tune.process import SftProcess

        policy, start = Policy.made("weights", plan.slot, plan.name), FirstWeights.live(bench, plan.slot)
        async with SftProcess(bench.run.path / "logs" / f"{plan.name}.log", settings.unsloth, CHILD) as process:
            train, held, counts = await draw(plan, settings, bench)
            folder = bench.run.path / "phases" / plan.name
            await asyncio.to_thread(write_pairs, folder / PAIRS, train)
            await asyncio.to_thread(write_pairs, folder / HELD_OUT, held)
            spec = _spec(settings, folder, start.folder, bench.run.path / policy.folder, bench.config.seed)
            told = f"{len(train)} pairs"
            figures = await train_once(process, spec, policy, start, bench, told, {**counts, **bench.spent()})
        if "held_out/won_after" in figures:
            won = f"{figures['held_out/won_after']:.0%} of {figures['pairs/held_out']} held-out pairs are won"
            bench.view.note(f"{plan.name}: {won}")
        return Learned(figures, policy)


async def draw(
    plan: PhasePlan, settings: DpoSettings, bench: Bench
) -> tuple[list[AnswerPair], list[AnswerPair], dict[str, Any]]:
    """Pairs to train on, held-out pairs, and counts.

    Raises:
        RunError: Fewer than `min_examples` are left to train on.
    """
    from training.learning.examples import check_enough

    version, seed = bench.versions[plan.slot], bench.config.seed
    states = await collect_states(plan, settings.tasks, bench)
    values = Values(settings.reward, how_valued(plan, settings.reward, settings.value, bench.config), bench)
    groups = await grow(bench, values, states, settings.answers, seed=seed, version=version)
    made = await asyncio.to_thread(all_pairs, groups, settings.pairs, settings.keep_right, seed)
    fitting = [pair for pair in made if pair.length <= settings.max_length]
    is_held = hold_out((group.state for group in groups if group.informs), settings.held_out, seed)
    train, held = ([pair for pair in fitting if is_held(pair) is wanted] for wanted in (False, True))
    figures: dict[str, Any] = group_figures(groups)
    counts = {
        **figures,
        "pairs": len(train),
        "pairs/held_out": len(held),
        "pairs/too_long": len(made) - len(fitting),
        **{f"pairs/{kind}": count for kind, count in Counter(pair.kind for pair in train).items()},
    }
    stale = sum(group.left_out["stale"] for group in groups)
    told = (
        f"{figures['branches/informative']} of {len(states)} prompts have answers of different worth, which gives "
        f"{len(train)} pairs and {len(held)} held-out ones"
    )
    bench.view.note(f"{plan.name}: {told}; {stale} answers by other weights than {version} are left out")
    check_enough(plan.name, told, len(train), settings.min_examples)
    return train, held, counts


def write_pairs(file: Path, pairs: Sequence[AnswerPair]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(pair.row()) + "\n" for pair in pairs), encoding="utf-8")


def _spec(settings: DpoSettings, folder: Path, model: Path, out: Path, seed: int) -> "DpoSpec":
    from training.tune.dpo_child import DpoSpec

    usual = asdict(specify(settings, folder / PAIRS, model, out, seed))
    return DpoSpec(**usual, held_out=str((folder / HELD_OUT).absolute()), beta=settings.beta)
