"""A rollout's tree as one HTML page that needs nothing else: no script, no font, no address outside it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.scores.rewards import part_title
from evaluation.traces import text as trace_text
from evaluation.traces.token_lines import GRADIENT_WORDS, HEAD, TokenLine, credit_line, token_lines
from evaluation.traces.token_records import TokenRecord
from evaluation.traces.tree import Tree

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "trace.html.j2"
SURPRISE = 4.0
"""Tokens with a log-probability of minus this (one in 55) or lower are drawn in full strength."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer for drawing.

    Attributes:
        line: What the update made of it.
        colour: How strong its advantage is, from 0 to 1 of the largest in the rollout.
        surprise: How unlikely it was, from 0 to 1.
    """

    line: TokenLine
    colour: float
    surprise: float


def page(
    tree: Tree,
    *,
    run: str,
    pieces: Mapping[str, Sequence[str]],
    note: str | None = None,
    gradients: Mapping[str, str] | None = None,
    back: str | None = None,
) -> str:
    """The page.

    Args:
        pieces: The texts of the tokens of calls that PPO learned from, by response id.
        note: What else to say at the top.
        gradients: A line on the gradient of calls that PPO learned from, by response id.
        back: Address of the page that this one belongs to, for a link.
    """
    tokens = drawn_tokens(tree, pieces)
    notes = (*tree.notes, note) if note else tree.notes
    template = _environment().get_template(TEMPLATE)
    shown = {"tokens": tokens, "gradients": gradients or {}, "back": back}
    return template.render(tree=tree, record=tree.record, run=run, notes=notes, **shown)


def drawn_tokens(tree: Tree, pieces: Mapping[str, Sequence[str]]) -> dict[str, list[Token]]:
    """The tokens of the calls that an update learned from, by response id; `pieces` as in `page`."""
    largest = _largest(tree)
    return {
        record.response_id: _tokens(record, ids, pieces.get(record.response_id), largest)
        for record, ids in learned_calls(tree)
    }


def _largest(tree: Tree) -> float:
    """The largest advantage of the rollout without its sign; 1.0 when there is none."""
    values = [abs(value) for record, _ in learned_calls(tree) for value in record.advantages if math.isfinite(value)]
    return max(values, default=0.0) or 1.0


def learned_calls(tree: Tree) -> Iterator[tuple[TokenRecord, Sequence[int] | None]]:
    """The calls of a rollout and their branches that an update learned from, each with the ids of its tokens."""
    for call in (call for visit in tree.visits for call in visit.calls):
        if call.tokens is not None:
            yield call.tokens, call.exchange.response_ids if call.exchange else None
        for branch in call.branches:
            if branch.tokens is not None:
                yield branch.tokens, branch.ids


def _tokens(record: TokenRecord, ids: Sequence[int] | None, texts: Sequence[str] | None, largest: float) -> list[Token]:
    """A call's tokens; without texts they are shown by their ids."""
    return [
        Token(line, _share(line.advantage / largest), _share(-line.before / SURPRISE))
        for line in token_lines(record, ids, texts)
    ]


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
    environment.globals.update(words())
    return environment


def words() -> dict[str, Any]:
    """What templates of a rollout's tree call, by name."""
    return {function.__name__: function for function in _FUNCTIONS} | {"HEAD": HEAD, "GRADIENT_WORDS": GRADIENT_WORDS}


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
    trace_text.shown_answer,
    trace_text.gist,
    trace_text.number,
    part_title,
    credit_line,
)
"""Functions for the template."""
