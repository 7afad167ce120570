"""What the default run teaches: `python -m benchmarks.learning` trains on each seed and prints the paired tables.

For each seed four runs (some fifteen minutes in all): the whole pipeline, and each phase alone. Runs that are there and
finished are read, not repeated; one that was interrupted is continued. Differences are paired: each stage answers the
same held-out tasks with the same seeds.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chimera.config import Config
from chimera.policies import WENT_LIVE
from chimera.runs import Run, list_runs
from evaluation.paired import Difference, paired_difference
from evaluation.rollouts import RolloutRecord
from training.summary import aligned

PLANS = {
    "full": ["--phases", "gather,sft,ppo,bandit"],
    # On twice the held-out tasks: juniors answer better, but whose answer goes on is left to chance, which is noise.
    "sft": ["--phases", "gather,sft", "gate.tasks=200"],
    "ppo": ["--phases", "ppo"],
    "bandit": ["--phases", "gather,bandit"],
}
ALONE = ("sft", "ppo", "bandit")

Pairs = list[tuple[RolloutRecord, RolloutRecord]]


def main() -> None:
    """Make what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/learning"))
    options = parser.parse_args()
    runs = {(plan, seed): made(plan, seed, options.runs_dir) for seed in options.seeds for plan in PLANS}
    # Without a terminal rich takes 80 columns, which would cut the intervals.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(phases_table(runs, options.seeds))
    console.print(whole_table(runs, options.seeds))


def made(plan: str, seed: int, folder: Path) -> Run:
    """The finished run of `plan` with `seed`, trained now unless it is there."""
    name = f"{plan}-{seed}"
    there = {run.name: run for run in list_runs(folder)}
    if name not in there or not finished(there[name], plan):
        arguments = ["--resume"] if name in there else [*PLANS[plan], f"seed={seed}"]
        command = [sys.executable, "-m", "chimera.train", "--name", name, *arguments, f"runs_dir={folder}"]
        subprocess.run(command, check=True)
    return Run.open(name, folder)


def finished(run: Run, plan: str) -> bool:
    """Whether every phase of the plan has ended."""
    done = {event["phase"] for event in run.events() if event["event"] == "phase_finished"}
    return done >= set(PLANS[plan][1].split(","))


def pairs(run: Run, before: str, after: str) -> Pairs:
    """The same held-out tasks at two stages of a run."""
    old, new = (
        {one["task_id"]: RolloutRecord.load(one) for one in run.rollouts(f"evaluation-{stage}")}
        for stage in (before, after)
    )
    return [(old[task], new[task]) for task in old]


def final(run: Run) -> str:
    """The stage that is live in the end: the last that was not rolled back."""
    return [event["phase"] for event in run.events() if event["event"] == WENT_LIVE][-1]


def reward(found: Pairs) -> Difference:
    """Reward where both have one."""
    both = [(old.reward, new.reward) for old, new in found if old.reward is not None and new.reward is not None]
    return difference([old for old, _ in both], [new for _, new in both])


def alignment(found: Pairs) -> Difference:
    """Percentage of decisions that correspond to the label; none is not aligned."""
    values = [[100.0 * bool(aligned(record)) for record in side] for side in zip(*found, strict=True)]
    return difference(*values)


def difference(before: Sequence[float], after: Sequence[float]) -> Difference:
    """With the gate's own settings."""
    gate = Config().gate
    return paired_difference(before, after, confidence=gate.confidence, resamples=gate.resamples, seed=0)


def phases_table(runs: Mapping[tuple[str, int], Run], seeds: Sequence[int]) -> Table:
    """Each phase alone from base, on each seed and pooled."""
    table = new_table("each phase alone, minus base", "phase")
    for phase in ALONE:
        by_seed = {seed: pairs(runs[phase, seed], "base", phase) for seed in seeds}
        for seed, found in by_seed.items():
            add(table, phase, str(seed), found)
        add(table, phase, "pooled", [pair for found in by_seed.values() for pair in found], end=True)
    return table


def whole_table(runs: Mapping[tuple[str, int], Run], seeds: Sequence[int]) -> Table:
    """The whole run: what each phase added in sequence, and the end minus base."""
    table = new_table("the whole run", "step")
    steps = [("base", "sft"), ("sft", "ppo"), ("ppo", "bandit")]
    for before, after in steps:
        found = [pair for seed in seeds for pair in pairs(runs["full", seed], before, after)]
        add(table, f"{before} > {after}", "pooled", found, end=(before, after) == steps[-1])
    by_seed = {seed: pairs(runs["full", seed], "base", final(runs["full", seed])) for seed in seeds}
    for seed, found in by_seed.items():
        add(table, "base > final", str(seed), found)
    add(table, "base > final", "pooled", [pair for found in by_seed.values() for pair in found])
    return table


def new_table(title: str, first: str) -> Table:
    """Columns that both tables share."""
    table = Table(title=f"{title}: paired difference with 95 % interval", title_justify="left")
    for name in (first, "seed", "n", "reward", "difference", "aligned, %", "points"):
        table.add_column(name, justify="left" if name in (first, "seed") else "right", no_wrap=True)
    return table


def add(table: Table, name: str, seed: str, found: Pairs, *, end: bool = False) -> None:
    """One row."""
    earned, fits = reward(found), alignment(found)
    table.add_row(
        *(name, seed, str(len(found)), f"{earned.before:.2f} {earned.after:.2f}"),
        f"{earned.mean:+.2f} [{earned.low:+.2f}, {earned.high:+.2f}]",
        f"{fits.before:.0f} {fits.after:.0f}",
        f"{fits.mean:+.1f} [{fits.low:+.1f}, {fits.high:+.1f}]",
        end_section=end,
    )


if __name__ == "__main__":
    main()
