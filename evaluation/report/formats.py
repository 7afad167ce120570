"""Formats a report's numbers: by unit, with a true minus sign, and with no more digits than the sample supports."""

import re
from collections.abc import Mapping
from typing import Any

from chimera.show.blocks import spaced
from evaluation.records.study import SPLITS

MINUS = "\N{MINUS SIGN}"
UNIT_WORDS = {"share": "%", "points": "", "seconds": "s", "usd": "USD", "count": ""}
"""The unit after a metric's title in tables. Shares are shown in per cent."""
NOTHING = "\N{EN DASH}"
"""Shown in place of a missing value."""


def shown(value: float | None, unit: str) -> str:
    """A value without its unit, such as "69.0" for a share of 0.69."""
    return NOTHING if value is None else _signed(f"{_scaled(value, unit):,.{_digits(value, unit)}f}")


def change(value: float | None, unit: str) -> str:
    """A difference with its sign, in percentage points for shares."""
    return NOTHING if value is None else _signed(f"{_scaled(value, unit):+,.{_digits(value, unit)}f}")


def signed(value: float, digits: int) -> str:
    """A number with its sign for the terminal. A number that rounds to zero has no sign."""
    text = f"{value:+.{digits}f}"
    return text if text.strip("+-0.") else text[1:]


def two(value: float | None) -> str:
    """A coefficient or a score with two decimals."""
    return NOTHING if value is None else _signed(f"{value:.2f}")


def between(low: float | None, high: float | None, unit: str) -> str:
    """An interval of a value, such as "60.0 to 78.0"; a dash if there is none."""
    return NOTHING if low is None or high is None else f"{shown(low, unit)} to {shown(high, unit)}"


def change_between(low: float | None, high: float | None, unit: str) -> str:
    """An interval of a difference, such as "+4.0 to +26.0"; a dash if there is none."""
    return NOTHING if low is None or high is None else f"{change(low, unit)} to {change(high, unit)}"


def probability(p: float | None) -> str:
    """A p-value with two significant digits, "< 0.001" below that."""
    if p is None:
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def equals(p: float | None) -> str:
    """A p-value with the sign before it, such as "= 0.04" or "< 0.001"."""
    words = probability(p)
    return words if words.startswith("<") else f"= {words}"


def slug(name: str) -> str:
    """`name` as an HTML anchor: `:` becomes `-`, another unusual character its number, so that labels stay apart."""
    return re.sub(r"[^A-Za-z0-9_.-]", lambda match: f"~{ord(match[0]):x}~", name.replace(":", "-"))


def sentence(text: str) -> str:
    """`text` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def titled(metric: Mapping[str, Any]) -> str:
    """A metric's title with its unit, such as "latency, s"."""
    unit = UNIT_WORDS[metric["unit"]]
    return f"{metric['title']}, {unit}" if unit else str(metric["title"])


def stage_titles(report: Mapping[str, Any]) -> dict[str, str]:
    titles = {stage["name"]: stage["title"] for stage in report["plan"]["stages"]}
    return titles | {name: baseline["title"] for name, baseline in report["baselines"].items()}


def played(report: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Each model with the roles that it plays, in words."""
    roles_by_player: dict[str, list[str]] = {}
    for player in report["players"].values():
        served = player["kind"] in ("embedded", "vllm", "endpoint")
        name = f"{player['model']} ({player['kind'] if served else 'deterministic, no language model'})"
        roles_by_player.setdefault(name, []).extend(map(spaced, player["roles"]))
    return list(roles_by_player.items())


def data_words(report: Mapping[str, Any]) -> str:
    plan = report["plan"]
    split = SPLITS[plan["split"]]
    source = {"generated": "generated", "pubmedqa": "PubMedQA"}.get(plan["source"], "own")
    official = "official " if plan["official"] else ""
    repeats = f", {plan['repeats']} rollouts of each in each stage" if plan["repeats"] > 1 else ""
    return f"{len(plan['tasks'])} {official}{source} {split} tasks{repeats}"


def veto_words(report: Mapping[str, Any]) -> str:
    """Number of vetoed protocols of each stage and the reasons, in one line."""
    parts: list[str] = []
    for stage, outcome in report["outcomes"].items():
        counted = [f"{count} x {why}" for why, count in outcome["vetoes"].items()]
        reasons = f" ({'; '.join(counted)})" if counted else ""
        parts.append(f"{stage_titles(report)[stage]} {outcome['vetoed']} of {outcome['count']}{reasons}")
    return ", ".join(parts)


def margin_words(report: Mapping[str, Any]) -> str:
    margins = [(report["metrics"][name], margin) for name, margin in report["settings"]["margins"].items()]
    return ", ".join(f"{titled(metric)}: {shown(margin, metric['unit'])}" for metric, margin in margins)


def families_words(report: Mapping[str, Any]) -> str:
    """Which tests were corrected together, and when this was declared, in one line."""
    families = report["families"]
    parts = [
        f"{name} ({', '.join(family['patterns']) or 'what no other has'}: "
        f"{family['tests']} test{'s' * (family['tests'] != 1)})"
        for name, family in families["used"].items()
    ]
    when = (
        f"declared at the run's start, {families['declared']}"
        if families["as_declared"]
        else "not declared before the run"
    )
    by_gate = sum(comparison["by_gate"] for rows in report["comparisons"].values() for comparison in rows.values())
    gate_words = f"; decided by the gate, so in no family: {by_gate} test{'s' * (by_gate != 1)}" if by_gate else ""
    return f"families of tests, {when}: {'; '.join(parts) or 'none'}{gate_words}"


def answered(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All systems that answered the tasks, baselines first: "name", "title", "means", and mean "calls" and "tokens"."""
    titles = stage_titles(report)
    rows = [(name, titles[name], means) for name, means in report["baselines"].items()]
    rows += [(name, f"the society, {titles[name]}", means) for name, means in report["stages"].items()]
    unknown = {"calls": None, "tokens": None}
    return [
        {"name": name, "title": title, "means": means, **report["work"].get(name, unknown)}
        for name, title, means in rows
    ]


def standing(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of `answered` for the first screen; empty if there is nothing to compare the society with."""
    rows = {row["name"]: row for row in answered(report)}
    return [rows[name] for name in report["standing"]] if len(report["standing"]) > 1 else []


def standing_words(report: Mapping[str, Any]) -> str:
    """Compares the last stage with the strongest baseline of its tokens in one sentence; empty if there is none."""
    rows = {row["name"]: row for row in standing(report)}
    if (strongest := report["strongest"]) not in rows:
        return ""
    society, rival = rows[report["standing"][0]], rows[strongest]
    sides = [f"{row['title']}, {_answer_words(row)}" for row in (society, rival)]
    return f"{sentence(sides[0])}; the strongest baseline of at most as many tokens: {sides[1]}."


def pays_words(report: Mapping[str, Any], *, undivided: bool = False) -> str:
    """Whether the society is worth its tokens, in one sentence with the interval; empty without a rival.

    Args:
        undivided: Beside the strongest model that does not divide the evidence.
    """
    name = report.get("undivided") if undivided else report["strongest"]
    row = report["comparisons"].get(beside_society(report, name), {}).get("alignment")
    if name is None or row is None:
        return ""
    change_words = f"{change(row['difference'], 'share')} points ({change_between(row['low'], row['high'], 'share')})"
    rivals = "beside the strongest baseline of at most its tokens"
    if undivided:
        rivals = (
            f"beside the strongest model of at most its tokens that reads in one context ({stage_titles(report)[name]})"
        )
    if row["verdict"] == "better":
        return f"Yes, on these tasks: right answers {change_words} {rivals}."
    if row["verdict"] == "worse":
        return f"No: right answers {change_words} {rivals}."
    society, rival = (report["work"][system]["tokens"] for system in (report["standing"][0], name))
    spent = f", at {society / rival:.1f} times its tokens" if society and rival else ""
    return f"Not shown: right answers {change_words} {rivals}{spent}."


def growth_words(report: Mapping[str, Any]) -> str:
    """Whether the society gains more the more studies a task has, in one sentence with the interval; empty without."""
    by_studies = report.get("studies", {})
    if (line := by_studies.get("slope")) is None:
        return ""
    steady = line["low"] is None or line["low"] <= 0 <= line["high"]
    verdict = "Not shown" if steady else "Yes, on these tasks" if line["mean"] > 0 else "No, it shrinks"
    change_words = f"{change(line['mean'], 'share')} points ({change_between(line['low'], line['high'], 'share')})"
    every = f"for every {by_studies['step']} studies more"
    return f"{verdict}: {change_words} {every}, beside the strongest baseline of at most its tokens, not corrected."


def beside_society(report: Mapping[str, Any], name: str | None) -> str:
    """The name of the comparison of a baseline with the last stage."""
    return f"{name}:{report['standing'][0]}"


def beside_strongest(report: Mapping[str, Any]) -> str | None:
    """The comparison of the strongest baseline of the society's tokens with the last stage; None if there is none."""
    pair = beside_society(report, report["strongest"])
    return pair if pair in report["comparisons"] else None


def sampled_words(report: Mapping[str, Any]) -> str:
    """The temperature at which the society and its sampled baselines answered, in a few words."""
    temperature = report["settings"]["temperature"]
    temperature_words = "each slot's own temperature" if temperature is None else f"temperature {temperature:g}"
    return "greedy" if temperature == 0 else f"sampled at {temperature_words}"


def amount(value: float | None) -> str:
    """A mean number of calls or tokens: "0" for none, a dash if it is unknown."""
    if value is None:
        return NOTHING
    return f"{value:,.1f}" if 0 < value < 100 else f"{value:,.0f}"


def _answer_words(row: Mapping[str, Any]) -> str:
    if "alignment" not in row["means"]:
        return "gave no answer"
    right = shown(row["means"]["alignment"]["mean"], "share")
    return f"answers {right} % right with {amount(row['tokens'])} tokens a task"


def ablation_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ablation, one row for each comparison: "phase", "learner", "on" (the stage below it) and "comparison"."""
    titles = stage_titles(report)
    rows: dict[str, dict[str, Any]] = {}
    also: dict[str, list[str]] = {}
    for row in report["ablation"]:
        pair = row["comparison"]
        below = titles[pair.split(":")[0]]
        if pair in rows:  # for the first phase, the stage before it is the base; the last one is left out of the end
            ways = {"alone": "alone", "left out": "left out of the end", "at base": f"{row['learner']} back at base"}
            also.setdefault(pair, []).append(ways[row["kind"]])
        else:
            on = f"{below} alone" if row["kind"] == "alone" else below
            rows[pair] = {key: row[key] for key in ("phase", "learner", "comparison")} | {"on": on}
    for pair, kinds in also.items():
        rows[pair]["on"] += f", so also {' and '.join(kinds)}"
    return list(rows.values())


def _scaled(value: float, unit: str) -> float:
    return 100 * value if unit == "share" else value


def _digits(value: float, unit: str) -> int:
    if unit == "count":
        return 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
    if unit == "usd":
        return 5
    return {"share": 1, "points": 3, "seconds": 2}[unit]


def _signed(text: str) -> str:
    """Replace the hyphen by a true minus sign, and remove the sign of a zero."""
    zero = not text.strip("+-0.,")
    return text.lstrip("+-") if zero else text.replace("-", MINUS)
