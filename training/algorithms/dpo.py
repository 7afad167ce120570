"""Step DPO: of two answers to one recorded prompt, the weights learn to prefer the one that is worth more.

The answers are branches (`training.learning.base.Bench.branch`), as in AgentQ (arXiv 2408.07199), where a tree search
gives them. A tenth of the states is held out: how many of their pairs are won tells whether anything general was
learned. The trainer gets the server's own token ids.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from chimera.config.tree import Config
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from training.algorithms.pairs import PairSet, all_pairs, hold_out
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.examples import Render, check_enough
from training.learning.fine_tuning import TuneSettings, check_batches
from training.learning.groups import BranchSettings, group_figures, grow
from training.learning.states import check_tasks, check_varied, collect_states
from training.learning.values import Values, how_valued


class DpoSettings(TuneSettings, BranchSettings):
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
    imitation: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="weight of imitating the preferred answers, too: keeps what both answers of a pair have right",
    )
    lr: float = Field(
        default=1e-4, gt=0, le=10, description="peak learning rate; real models want 5e-7 to 5e-6, LoRA ten times that"
    )
    max_length: int = Field(
        default=2048, ge=32, le=1_000_000, description="longer pairs are left out and counted, in tokens of the longer"
    )

    def idle(self) -> Mapping[str, str]:
        return {"ranks": "one process compares pairs"}


class Dpo:
    """Draws answers, makes pairs, and trains the roles' weights on them."""

    Settings = DpoSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: DpoSettings, config: Config, dataset: Dataset) -> None:
        check_batches(plan, settings)
        check_varied(plan, config, "compares different ones")
        how_valued(plan, settings.reward, settings.value, config)
        check_tasks(plan, settings.tasks, dataset, config.seed)

    async def learn(self, plan: PhasePlan, settings: DpoSettings, bench: Bench) -> Learned:
        """Draw, pair, train.

        Raises:
            RunError: There are too few pairs, or the training process ended early.
        """
        choose = partial(draw, plan, settings, bench)
        learned = await bench.fine_tune(plan, settings, choose, beta=settings.beta, imitation=settings.imitation)
        figures = learned.figures
        if "held_out/won_after" in figures:
            won = f"{figures['held_out/won_after']:.0%} of {figures['pairs/held_out']} held-out pairs are won"
            bench.view.note(f"{plan.name}: {won}")
        return learned


async def draw(plan: PhasePlan, settings: DpoSettings, bench: Bench, _: Render) -> PairSet:
    """Pairs to train on and held-out pairs; their tokens are the server's own.

    Raises:
        RunError: Fewer than `min_examples` are left to train on.
    """
    version, seed = bench.versions[plan.slot], bench.config.seed
    states = await collect_states(plan, settings.tasks, bench)
    values = Values(settings.reward, how_valued(plan, settings.reward, settings.value, bench.config), bench)
    groups = await grow(bench, values, states, settings.answers, seed=seed, version=version)
    pairs = await asyncio.to_thread(all_pairs, groups, settings.pairs, settings.keep_right, seed)
    fitting = [pair for pair in pairs if pair.length <= settings.max_length]
    is_held = hold_out((group.state for group in groups if group.informs), settings.held_out, seed)
    train, held = ([pair for pair in fitting if is_held(pair) is side] for side in (False, True))
    figures: dict[str, Any] = group_figures(groups)
    counts = {
        **figures,
        "pairs": len(train),
        "pairs/held_out": len(held),
        "pairs/too_long": len(pairs) - len(fitting),
        **{f"pairs/{kind}": count for kind, count in Counter(pair.kind for pair in train).items()},
    }
    stale = sum(group.left_out["stale"] for group in groups)
    summary = (
        f"{figures['branches/informative']} of {len(states)} prompts have answers of different worth, which gives "
        f"{len(train)} pairs and {len(held)} held-out ones"
    )
    bench.view.note(f"{plan.name}: {summary}; {stale} answers by other weights than {version} are left out")
    check_enough(plan.name, summary, len(train), settings.min_examples)
    return PairSet(tuple(train), tuple(held), {**counts, **bench.spent()})
