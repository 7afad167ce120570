"""A rollout's tree as one HTML page that needs nothing else: no script, no font, no address outside it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.traces import text as trace_text
from evaluation.traces.tree import ShownCall, Tree

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "trace.html.j2"
SURPRISE = 4.0
"""Tokens with a log-probability of minus this (one in 55) or lower are drawn in full strength."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a senior's answer for drawing.

    Attributes:
        colour: How strong its advantage is, from 0 to 1 of the largest in the rollout.
        surprise: How unlikely it was, from 0 to 1.
        id: None when the trace does not have it.
    """

    text: str
    id: int | None
    mask: float
    advantage: float
    log_prob: float
    colour: float
    surprise: float


def page(tree: Tree, *, run: str, pieces: Mapping[str, Sequence[str]], note: str | None = None) -> str:
    """The page.

    Args:
        tree: The rollout.
        run: The run's name.
        pieces: The texts of the tokens of calls that PPO learned from, by response id.
        note: What else to say at the top.
    """
    largest = _largest(tree)
    tokens = {
        call.tokens.response_id: _tokens(call, pieces.get(call.tokens.response_id), largest)
        for visit in tree.visits
        for call in visit.calls
        if call.tokens is not None
    }
    notes = (*tree.notes, note) if note else tree.notes
    template = _environment().get_template(TEMPLATE)
    return template.render(tree=tree, record=tree.record, run=run, notes=notes, tokens=tokens)


def _largest(tree: Tree) -> float:
    """The largest advantage of the rollout without its sign; 1.0 when there is none."""
    values = [
        abs(value)
        for visit in tree.visits
        for call in visit.calls
        if call.tokens is not None
        for value in call.tokens.advantages
        if math.isfinite(value)
    ]
    return max(values, default=0.0) or 1.0


def _tokens(call: ShownCall, texts: Sequence[str] | None, largest: float) -> list[Token]:
    """A call's tokens; without texts they are shown by their ids."""
    learned = call.tokens
    assert learned is not None
    ids = trace_text.token_ids(call)
    shown = texts or [trace_text.by_id(token) for token in ids]
    columns = learned.mask, learned.advantages, learned.old_log_probs
    return [
        Token(text, token, mask, advantage, chance, _share(advantage / largest), _share(-chance / SURPRISE))
        for text, token, mask, advantage, chance in zip(shown, ids, *columns, strict=True)
    ]


def advantages(tokens: Sequence[Token]) -> str:
    """The advantage of a call's tokens, or its range if tokens differ, as with gae."""
    values = [token.advantage for token in tokens]
    lowest, highest = min(values), max(values)
    return f"advantage {lowest:+.3f}" if lowest == highest else f"advantages from {lowest:+.3f} to {highest:+.3f}"


def _share(value: float) -> float:
    """The absolute value of `value`, at most 1; 0 if it is not finite."""
    return round(min(abs(value), 1.0), 3) if math.isfinite(value) else 0.0


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1] / "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update({function.__name__: function for function in (*_FUNCTIONS, advantages)})
    return environment


_FUNCTIONS = (
    trace_text.facts,
    trace_text.title,
    trace_text.player,
    trace_text.reason,
    trace_text.call_line,
    trace_text.branches_line,
    trace_text.tool_line,
    trace_text.tool_texts,
    trace_text.field_lines,
    trace_text.selection_lines,
    trace_text.gist,
    trace_text.number,
)
"""Functions for the template."""
