"""What read quotes give: `python -m benchmarks.quotes` asks the same weights on the same tasks with and without them.

Three ways to work, with equal tasks, seeds and weights, nothing learned in between: quotes written freely by a refiner
that trusts what it is handed; quotes chosen among the sentences that were read; and those with a refiner that reads the
passages too. Differences are paired with bootstrap intervals. `--run NAME` takes the weights and the policy that a run
learned; without it the bundled model is asked as it is.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from agents.context import Selector, SupervisorChoice
from agents.society import Society
from agents.tools.sources import sources_seen
from agents.tools.toolbox import build_toolbox
from agents.visit.record import CallRecord, ModelCall
from chimera.config.roles import JUDGE
from chimera.config.tree import Config, load_config
from chimera.core.errors import RoleError
from chimera.core.quotes import missing_quotes
from chimera.core.types import ResearchTask
from chimera.data.tasks import load
from chimera.run.directory import Run
from chimera.run.policies import live
from chimera.serving.client import HttpModel
from chimera.serving.process import ModelServers, serve
from evaluation.conduct.live import Live
from evaluation.measures.paired import paired_difference
from evaluation.records.rollouts import RolloutInput
from evaluation.records.study import GATE
from evaluation.scores.alignment import decision_aligned
from evaluation.scores.judge import Judge

WAYS = {
    "free quotes, the refiner trusts": {"quotes": "free", "refiner": "trusts"},
    "read quotes, the refiner trusts": {"quotes": "read", "refiner": "trusts"},
    "read quotes, the refiner reads": {"quotes": "read", "refiner": "reads"},
}
AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """One task's: shares of 0 or 1, and counts."""

    right: float
    aligned: float
    vetoed: float
    misquoted: float
    failed: float
    tokens: float


FAILED = Outcome(0, 0, 0, 0, 1, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", help="take the weights and the policy that this run learned")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--tasks", type=int, default=200, help="test tasks (default 200)")
    parser.add_argument("--tiny", action="store_true", help="4 tasks, to see that it works")
    options = parser.parse_args()
    run = Run.open(options.run, options.runs_dir) if options.run else None
    config = run.config if run else load_config(None, [])
    tasks = load(config.data).test[: 4 if options.tiny else options.tasks]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "models.log"
        with serve(config.used(), config.serving, {}, log_file=log) as servers:
            selector = learned(run, config, servers) if run else SupervisorChoice()
            found = {way: asyncio.run(asked(config, way, servers, selector, tasks)) for way in WAYS}
    Console(width=140).print(table(found))


def learned(run: Run, config: Config, servers: ModelServers) -> Selector:
    """Put what `run` learned live; gives who chooses then."""
    found = Live(run, config.models, servers)
    found.restore(live(run.events()).values())
    return found.selector()


async def asked(
    config: Config,
    way: str,
    servers: ModelServers,
    selector: Selector,
    tasks: Sequence[ResearchTask],
) -> list[Outcome]:
    """The society's outcome on every task, working in one way."""
    society, roles = config.society.model_copy(update=WAYS[way]), config.roles
    toolbox = build_toolbox(config.tools, load(config.data).documents(), {})
    model, free = HttpModel(servers.endpoints), asyncio.Semaphore(AT_ONCE)
    judge = Judge(model, config.slot(JUDGE))

    async def outcome(task: ResearchTask) -> Outcome:
        records: list[CallRecord] = []
        seed = RolloutInput.of(task, GATE, 0, config.seed).seed
        team = Society(model, toolbox, society, roles, evaluate=judge.evaluate, observe=records.append, select=selector)
        async with free:
            try:
                return measured(await team.run(task.brief(), seed), task, records)
            except RoleError:
                return FAILED

    try:
        return await asyncio.gather(*map(outcome, tasks))
    finally:
        await model.aclose()


def measured(state: Mapping[str, Any], task: ResearchTask, records: Sequence[CallRecord]) -> Outcome:
    texts = [source["text"] for source in sources_seen(state["messages"])]
    calls = [record for record in records if isinstance(record, ModelCall)]
    return Outcome(
        right=float(state["final_answer"] == task.label),
        aligned=float(decision_aligned(state["final_decision"], task.label)),
        vetoed=float(state["final_veto"] is not None),
        misquoted=float(len(missing_quotes(state["refined_hypothesis"]["evidence"], texts))),
        failed=0.0,
        tokens=float(sum(call.completion_tokens for call in calls)),
    )


def table(found: Mapping[str, Sequence[Outcome]]) -> Table:
    """One row for each way; differences are against the first."""
    first = next(iter(found.values()))
    shown = Table(title=f"n = {len(first)} tasks; differences in points, paired, 95 % intervals", title_justify="left")
    for name in ("way", "right, %", "aligned, %", "vetoes", "misquotes", "failed", "tokens"):
        shown.add_column(name, justify="left" if name == "way" else "right", no_wrap=True)
    for way, outcomes in found.items():
        shown.add_row(
            way,
            *(share(first, outcomes, name) for name in ("right", "aligned")),
            *(f"{sum(getattr(one, name) for one in outcomes):.0f}" for name in ("vetoed", "misquoted", "failed")),
            f"{fmean(one.tokens for one in outcomes):.0f}",
            end_section=True,
        )
    return shown


def share(before: Sequence[Outcome], after: Sequence[Outcome], name: str) -> str:
    """A share in per cent, and below it the difference."""
    old, new = ([100 * getattr(one, name) for one in side] for side in (before, after))
    if before is after:
        return f"{fmean(new):.1f}"
    found = paired_difference(old, new, confidence=0.95, resamples=2000, seed=0)
    return f"{fmean(new):.1f}\n{found.mean:+z.1f} [{found.low:+z.1f}, {found.high:+z.1f}]"


if __name__ == "__main__":
    main()
