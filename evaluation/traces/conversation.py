"""A rollout as blocks: its visits with their calls, tools and tokens, its answer and its reward."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from agents.roles import SUPERVISOR
from chimera.show import html
from chimera.show.blocks import (
    Block,
    Column,
    FactList,
    Fold,
    Heading,
    Inline,
    Note,
    Piece,
    Quote,
    TableBlock,
    TableLine,
    Text,
    Token,
    Tokens,
    Tone,
    joined,
)
from evaluation.records.rollouts import RolloutRecord
from evaluation.scores.rewards import part_title
from evaluation.traces.branches import Branch
from evaluation.traces.text import (
    branch_line,
    branches_line,
    call_line,
    facts,
    field_lines,
    gist,
    number,
    player,
    reason,
    selection_lines,
    shown_answer,
    title,
    tool_line,
    tool_texts,
)
from evaluation.traces.token_lines import GRADIENT_WORDS, HEAD, TokenLine, by_id, credit_line, token_lines
from evaluation.traces.token_records import TokenRecord
from evaluation.traces.tree import ShownCall, ShownToolCall, ShownVisit, Tree, learned_calls

SURPRISE = 4.0
"""Tokens with a log-probability of minus this (one in 55) or lower are drawn in full strength."""
TONES: Mapping[str, Tone] = {
    **dict.fromkeys(("GO", "NONE", "MINOR"), "good"),
    **dict.fromkeys(("UNDECIDED", "MAJOR"), "warn"),
    **dict.fromkeys(("NO-GO", "CRITICAL", "failed"), "bad"),
}
"""Tones of decisions, of the severity of a review, and of a rollout's status."""
KEY = (
    ("better than expected", Token("", "", 1.0, 0.0, True)),
    ("worse than expected", Token("", "", -1.0, 0.0, True)),
    ("line below: unlikely", Token("", "", 0.0, 1.0, True)),
    ("not in the loss", Token("", "", 0.0, 0.0, False)),
)
"""What the colours of tokens say."""


@dataclass(frozen=True, slots=True)
class LearnedTokens:
    """What to show of the tokens that an update learned from.

    Attributes:
        pieces: The texts of the tokens of calls, by response id; tokens without a text are shown by their ids.
        gradients: A line on the gradient of calls, by response id.
    """

    pieces: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gradients: Mapping[str, str] = field(default_factory=dict)


def page(tree: Tree, *, run: str, learned: LearnedTokens | None = None, note: str | None = None, back: str = "") -> str:
    """The rollout as one page that needs nothing else.

    Args:
        note: What else to say at the top.
        back: Address of the page that this one belongs to, for a link.
    """
    record = tree.record
    links: list[Piece] = [" · ", Text("in the report", href=back)] if back else []
    blocks = conversation(tree, run=run, learned=learned or LearnedTokens(), note=note, messages=True, top=links)
    return html.page(f"Rollout {record.rollout_id} of run {run}", blocks)


def conversation(
    tree: Tree,
    *,
    run: str,
    learned: LearnedTokens | None = None,
    note: str | None = None,
    messages: bool = False,
    top: Sequence[Piece] = (),
) -> list[Block]:
    """The whole rollout.

    Args:
        learned: Shows the tokens that an update learned from; None leaves them out.
        note: What else to say at the top.
        messages: Shows what each model was sent.
        top: Follows the run's name.
    """
    record = tree.record
    return [
        Note([f"Run {run}, rollout {record.rollout_id}", *top], "eyebrow"),
        Heading(goal(record), 1),
        summary(record),
        FactList([(name, Text(text, "bad" if name == "error" else "")) for name, text in facts(tree)]),
        *(Note(text, "note") for text in (*tree.notes, note) if text),
        *visits(tree, learned, messages=messages),
        *outcome(record),
    ]


def goal(record: RolloutRecord) -> str:
    """The question, or the task's id if the rollout did not come to it."""
    return str(record.outputs.get("research_goal") or f"Task {record.task_id}")


def summary(record: RolloutRecord, reward: str = "") -> FactList:
    """The outcome in a few words; the reward leads to `reward`."""
    took = "" if record.seconds is None else f" after {record.seconds:.2f} s"
    answer = Text(record.answer or "none", "good" if record.answer == record.label else "bad")
    return FactList(
        [
            *(("answer", answer), ("answer key", record.label)),
            ("decision", toned(record.decision or "none")),
            *(("reward", Text(number(record.reward), href=reward)), (f"status{took}", toned(record.status))),
        ],
        large=True,
    )


def toned(word: str) -> Text:
    """A decision, a severity or a status in its tone."""
    return Text(word, TONES.get(word, ""))


def visits(tree: Tree, learned: LearnedTokens | None, *, messages: bool) -> Iterator[Block]:
    """What happened, visit by visit."""
    if learned is not None and tree.learned:
        learners = [(place, visit) for place, visit in enumerate(tree.visits, 1) if visit_learned(visit)]
        links = joined([Text(title(visit), href=f"#visit-{place}") for place, visit in learners])
        yield Note(["An update learned from tokens of ", *links, "."], "fine")
        yield Note(GRADIENT_WORDS, "fine")
        tokens = (Token(words, "", example.advantage, example.surprise, example.counts) for words, example in KEY)
        gap = Token("  ", "", 0.0, 0.0, True)
        key = chain.from_iterable((token, gap) for token in tokens)
        yield Tokens(list(key)[:-1], "Tokens that an update learned from:")
    yield Heading("The conversation")
    if not tree.visits:
        yield Note("No visit is known.", "note")
    drawing = _Drawing(tree, learned, messages)
    for place, visit in enumerate(tree.visits, 1):
        yield drawing.visit(visit, f"visit-{place}")


def outcome(record: RolloutRecord, address: Callable[[str], str] | None = None) -> Iterator[Block]:
    """Answer, decision, and the reward part by part.

    Args:
        address: Where the value of a part of the reward, or of "reward", leads to: rollouts in the order of that part.
    """
    yield Heading("Answer and decision")
    answer = Text(record.answer or "No answer was given.", "strong")
    decision = toned(record.decision) if record.decision else Text("No decision was made.")
    vetoed = f", vetoed by {record.veto}" if record.veto else ""
    yield Note([answer, " ", decision, f"{vetoed} {record.outputs.get('final_rationale') or ''}"])
    yield Heading("Reward and its parts", anchor="parts")
    if address is not None:
        yield Note("Each value leads to the rollouts of the same stage, in the order of that part.", "fine")

    def value(name: str, part: float | None) -> Text:
        return Text(number(part), href="" if address is None else address(name))

    lines = [TableLine([part_title(name), value(name, part)]) for name, part in record.parts.items()]
    total = TableLine(["reward", value("reward", record.reward)], strong=True)
    yield TableBlock("", [Column("part"), Column("value", number=True)], [*lines, total])


@dataclass(frozen=True, slots=True)
class _Drawing:
    """What of a rollout is shown."""

    tree: Tree
    learned: LearnedTokens | None
    messages: bool

    def visit(self, visit: ShownVisit, anchor: str) -> Fold:
        why, answer = reason(visit), shown_answer(visit)
        state = str((answer or {}).get("severity") or (answer or {}).get("decision") or "")
        short = Text(gist(answer), TONES.get(state, "") if answer else "bad")
        head: list[Piece] = [Text(title(visit), "strong"), " ", short, Text(player(visit), "quiet", small=True)]
        opened = why is not None or visit_learned(visit)
        return Fold(head, list(self._inside(visit, why)), anchor, opened, style="again" if why else "visit")

    def _inside(self, visit: ShownVisit, why: str | None) -> Iterator[Block]:
        if why:
            yield Note(f"{why[:1].upper()}{why[1:]}", "note")
        if visit.broken:
            yield Note("The model's server failed, so the visit was tried again.", "note")
        if answer := shown_answer(visit):
            yield FactList(field_lines(answer))
        selection = self.tree.record.outputs.get("selection")
        if selection and visit.role == SUPERVISOR and visit is self._last(visit.role):
            yield FactList(selection_lines(selection))
        for call in visit.calls:
            yield from self._call(call, visit.role)

    def _last(self, role: str) -> ShownVisit:
        return [visit for visit in self.tree.visits if visit.role == role][-1]

    def _call(self, call: ShownCall, role: str) -> Iterator[Block]:
        yield Note(call_line(call), "fine")
        yield from map(_tool, call.tools)
        if call.answer is None and call.text:
            yield Note(Text(f"unread: {call.text}", "bad"))
        if call.tokens is not None:
            yield from self._tokens(call.tokens, call.exchange.response_ids if call.exchange else None)
        elif self.learned is not None and role in self.tree.learners:
            yield Note("PPO did not learn from this call: it had no peer to be compared with.", "fine")
        for phase in dict.fromkeys(branch.phase for branch in call.branches):
            yield self._branches(phase, [branch for branch in call.branches if branch.phase == phase])
        if self.messages and call.exchange is not None:
            sent = [Quote(message.get("content") or "", message["role"]) for message in call.new]
            yield Fold("Messages", [*sent, *([Quote(call.text, "answer")] if call.text else [])])

    def _branches(self, phase: str, branches: Sequence[Branch]) -> Block:
        words = branches_line(phase, branches)
        if self.learned is None:
            return Note(words, "fine")
        blocks: list[Block] = []
        for branch in branches:
            blocks.append(Note(branch_line(branch), "fine"))
            blocks += self._tokens(branch.tokens, branch.ids) if branch.tokens else ()
        return Fold(words, blocks)

    def _tokens(self, record: TokenRecord, ids: Sequence[int] | None) -> Iterator[Block]:
        if self.learned is None:
            return
        sampled = f"sampled by {record.policy or 'unknown weights'}, {len(record.mask)} tokens"
        yield Note(f"What PPO learned from: {sampled}; {credit_line(record)}.", "fine")
        if record.response_id in self.learned.gradients:
            yield Note(self.learned.gradients[record.response_id], "fine")
        lines = token_lines(record, ids, self.learned.pieces.get(record.response_id))
        largest = _largest(self.tree)
        yield Tokens([_token(line, largest) for line in lines])
        columns = [Column("#", number=True, extra=True), Column("token"), Column("id", number=True, extra=True)]
        columns += [Column(name, number=True) for name in HEAD]
        rows = [TableLine(_numbers(place, line)) for place, line in enumerate(lines, 1)]
        yield Fold("Every token as a table", [TableBlock("", columns, rows)])


def visit_learned(visit: ShownVisit) -> bool:
    """True if an update learned from tokens of one of the visit's answers, or of further answers to its prompts."""
    return any(call.tokens or any(branch.tokens for branch in call.branches) for call in visit.calls)


def _tool(tool: ShownToolCall) -> Block:
    head = Text(tool_line(tool), "" if tool.use.ok else "bad")
    if tool.answer is None:
        return Fold(head, [Note("What the model was told is not in the trace: no call followed.", "fine")])
    return Fold(head, [Quote(text, name) for name, text in tool_texts(tool.answer)])


def _numbers(place: int, line: TokenLine) -> list[Inline]:
    token = "unknown" if line.id is None else str(line.id)
    words = line.text if line.text == by_id(line.id) else repr(line.text)
    return [str(place), Text(words, "code"), token, *line.columns()]


def _largest(tree: Tree) -> float:
    """The largest advantage of the rollout without its sign; 1.0 when there is none."""
    values = [abs(value) for record, _ in learned_calls(tree) for value in record.advantages if math.isfinite(value)]
    return max(values, default=0.0) or 1.0


def _token(line: TokenLine, largest: float) -> Token:
    words = [f"advantage {line.advantage:+.4f}", f"log-probability {line.before:.4f}"]
    words += [] if line.after is None else [f"after the update {line.after:.4f}"]
    words.append(f"{100 * line.loss:.3f} % of the loss, {100 * line.gradient:.3f} % of the gradient")
    words += [f"mask {line.mask:g}", f"token {'unknown' if line.id is None else line.id}"]
    advantage = math.copysign(_share(line.advantage / largest), line.advantage)
    return Token(line.text, ", ".join(words), advantage, _share(line.before / SURPRISE), bool(line.mask))


def _share(value: float) -> float:
    """The absolute value of `value`, at most 1; 0 if it is not finite."""
    return min(abs(value), 1.0) if math.isfinite(value) else 0.0
