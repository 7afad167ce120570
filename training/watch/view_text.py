"""Texts of the views about rollouts: lines, and the table after a phase, from the figures of `summary`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from evaluation.records.rollouts import RolloutRecord, failures
from training.summary import aligned, mean, summarize


def number(value: float | None) -> str:
    """A figure with three decimals, or a dash."""
    return "-" if value is None else f"{value:z.3f}"


def running(records: Sequence[RolloutRecord]) -> str:
    """Reward, share of right answers, and failures so far."""
    rewards = [record.reward for record in records if record.reward is not None]
    agreement = [float(fits) for record in records if (fits := aligned(record)) is not None]
    failed = sum(record.status == "failed" for record in records)
    return f"reward {number(mean(rewards))}, right {number(mean(agreement))}, failed {failed}"


def describe_versions(versions: Mapping[str, str]) -> str:
    """Versions in one line. Logical models with the same version are grouped."""
    names: dict[str, list[str]] = {}
    for model, version in versions.items():
        names.setdefault(version, []).append(model)
    return "; ".join(f"{', '.join(models)}: {version}" for version, models in names.items()) or "-"


def failure(record: RolloutRecord) -> str:
    """One sentence about a failed rollout."""
    return f"rollout {record.rollout_id} on task {record.task_id} failed: {record.error}"


def result_table(name: str, records: Sequence[RolloutRecord], seconds: float) -> Table:
    """The table at the end of a phase."""
    figures: dict[str, Any] = summarize(records)
    table = Table(title=f"{name}: {len(records)} rollouts in {seconds:.1f} s", title_justify="left")
    table.add_column("figure", overflow="ellipsis", no_wrap=True, max_width=64)
    table.add_column("value", justify="right", no_wrap=True, min_width=6)
    if seconds > 0:
        table.add_row("rollouts per minute", f"{60 * len(records) / seconds:.1f}")
    table.add_row("succeeded", str(figures["succeeded"]))
    table.add_row("failed", str(figures["failed"]))
    for reason, times in failures(records).most_common(5):
        table.add_row(f"  {reason}", str(times))
    if figures["unscored"]:
        table.add_row("without a reward (a part is missing)", str(figures["unscored"]))
    table.add_section()
    table.add_row("reward, mean", number(figures["reward"]))
    for part, value in figures["parts"].items():
        table.add_row(f"  {part}", number(value))
    table.add_row("answers right, share", number(figures["alignment_rate"]))
    table.add_row("protocols vetoed", str(figures["vetoed"]))
    table.add_section()
    for count, total in figures["counts"].items():
        table.add_row(f"{count.replace('_', ' ')} per rollout", f"{total / len(records):.1f}")
    if figures["untraced_calls"]:
        table.add_row("model calls missing in traces", str(figures["untraced_calls"]))
    return table
