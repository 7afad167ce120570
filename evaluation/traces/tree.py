"""One rollout as a tree: visits of roles in the order of their beginning, their model calls, and tool calls.

Three sources are put together: the trace (messages, token ids, times), the worker's own record of each call (it is in
the trace's outcome) and, for a rollout that PPO learned from, the token records of its update.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.roles import PEER_REVIEWER, REFINER, ROLES, SAFETY_OFFICER
from agents.routing import RETURNED_TO, worst_severity
from agents.visit.react import read_answer
from agents.visit.record import ModelCall, ToolUse
from chimera.serving.client import Completion
from evaluation.records.rollouts import RolloutRecord
from evaluation.scores.judge import ROLE as JUDGE
from evaluation.traces.branches import Branch
from evaluation.traces.calls import TracedCall, last_outcome, model_calls, visits
from evaluation.traces.spans import EXCHANGE, Span
from evaluation.traces.token_records import TokenRecord

REVIEWERS = (PEER_REVIEWER, SAFETY_OFFICER)


@dataclass(frozen=True, slots=True)
class ShownToolCall:
    """One tool call: the worker's record of it, and what the model was told, None when no later call shows it."""

    use: ToolUse
    answer: str | None


@dataclass(frozen=True, slots=True)
class ShownCall:
    """One model call.

    Attributes:
        step: Which call of its visit's try, from 1.
        exchange: Request and answer; None when it is not in the trace.
        record: What the worker noted; None in a trace without an outcome.
        new: The messages that the visit's earlier calls had not had.
        answer: The answer as the role's schema reads it; None when it is none.
        tokens: What PPO learned from; None when it did not learn from this call.
        branches: Further answers to its prompt, which phases drew to learn from.
    """

    step: int
    exchange: TracedCall | None
    record: ModelCall | None
    new: tuple[Mapping[str, Any], ...]
    answer: Mapping[str, Any] | None
    tools: tuple[ShownToolCall, ...]
    tokens: TokenRecord | None
    branches: tuple[Branch, ...] = ()

    @property
    def text(self) -> str | None:
        """The answer's text as the model wrote it; None when it wrote none or the exchange is not in the trace."""
        return self.exchange.choice["message"].get("content") if self.exchange else None

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped; None when nothing says so."""
        if self.record is not None:
            return self.record.finish_reason
        return self.exchange.choice.get("finish_reason") if self.exchange else None

    @property
    def weights(self) -> str | None:
        """The weights that answered, as the server says."""
        if self.record is not None and self.record.weights_version:
            return self.record.weights_version
        return self.exchange.weights_version if self.exchange else None


@dataclass(frozen=True, slots=True)
class ShownVisit:
    """One try of one visit of a role.

    Attributes:
        number: Which of the role's visits, from 1; 2 and more are revisions.
        attempt: Which try of the visit, from 1.
        broken: Whether another try followed, because the model's server failed.
        because: For a revision, the reviews that sent it back, by reviewer.
        seconds: How long it took; None when the trace does not tell.
    """

    role: str
    model: str
    number: int
    attempt: int
    broken: bool
    because: Mapping[str, Mapping[str, Any]]
    seconds: float | None
    calls: tuple[ShownCall, ...]

    @property
    def answer(self) -> Mapping[str, Any] | None:
        """What the visit came to; None when it came to no readable answer."""
        return self.calls[-1].answer if self.calls else None


@dataclass(frozen=True, slots=True)
class Tree:
    """A rollout with everything that is known of it.

    Attributes:
        record: Its durable record: outputs, reward and parts, versions.
        visits: In the order in which they began; those of the attempt that the record is about.
        learned: Whether there are token records of it.
        notes: Sentences about what is missing and why.
    """

    record: RolloutRecord
    visits: tuple[ShownVisit, ...]
    learned: bool
    notes: tuple[str, ...]

    @property
    def learners(self) -> set[str]:
        """The roles that an update learned from token by token."""
        return {visit.role for visit in self.visits if any(call.tokens is not None for call in visit.calls)}


def learned_calls(tree: Tree) -> Iterator[tuple[TokenRecord, Sequence[int] | None]]:
    """The calls of a rollout and their branches that an update learned from, each with the ids of its tokens."""
    for call in (call for visit in tree.visits for call in visit.calls):
        if call.tokens is not None:
            yield call.tokens, call.exchange.response_ids if call.exchange else None
        for branch in call.branches:
            if branch.tokens is not None:
                yield branch.tokens, branch.ids


def tree(
    record: RolloutRecord,
    spans: Sequence[Span],
    tokens: Sequence[TokenRecord] = (),
    branches: Mapping[str, Sequence[Branch]] | None = None,
) -> Tree:
    """Put together what is known of one rollout.

    Args:
        spans: Its trace; none when it left no span.
        branches: Further answers to its calls, by the ids of their responses.
    """
    reported = last_outcome(spans)
    last = max(spans, key=lambda span: span.sequence_id, default=None)
    attempt_id = reported[0] if reported else last.attempt_id if last else ""
    sources = _Sources(
        {call.response_id: call for call in model_calls(spans, attempt_id=attempt_id)},
        *_records(reported[1]["calls"] if reported else ()),
        {token.response_id: token for token in tokens},
        branches or {},
    )
    visit_spans = [
        (span, responses)
        for span, responses in visits(spans)
        if span.attempt_id == attempt_id and isinstance(span, Span)
    ]
    visit_spans.sort(key=lambda pair: (pair[0].start_time or 0.0, pair[0].sequence_id))
    tries: dict[tuple[str, int], int] = {}
    for span, _ in visit_spans:
        key = span.attributes["role"], span.attributes["visit"]
        tries[key] = max(tries.get(key, 0), span.attributes.get("attempt", 1))
    shown_visits: list[ShownVisit] = []
    for span, responses in visit_spans:
        shown_visits.append(_visit(span, responses, sources, tries, shown_visits))
    return Tree(
        record, tuple(shown_visits), bool(tokens), tuple(_notes(record, spans, reported is not None, bool(tokens)))
    )


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources of calls, each by its key."""

    exchanges: Mapping[str, TracedCall]
    records: Mapping[str, ModelCall]
    failed: Mapping[tuple[str, int, int], Sequence[ModelCall]]
    uses: Mapping[tuple[str, int, int, int], Sequence[ToolUse]]
    tokens: Mapping[str, TokenRecord]
    branches: Mapping[str, Sequence[Branch]]


def _records(
    calls: Sequence[Mapping[str, Any]],
) -> tuple[
    dict[str, ModelCall], dict[tuple[str, int, int], list[ModelCall]], dict[tuple[str, int, int, int], list[ToolUse]]
]:
    """The outcome's records: answers by response id, calls that got none by visit, tool calls by their model call."""
    answered: dict[str, ModelCall] = {}
    failed: dict[tuple[str, int, int], list[ModelCall]] = defaultdict(list)
    uses: dict[tuple[str, int, int, int], list[ToolUse]] = defaultdict(list)
    for data in calls:
        fields = {key: value for key, value in data.items() if key != "kind"}
        if data["kind"] != ModelCall.__name__:
            use = ToolUse(**{**fields, "results": tuple(fields["results"])})
            uses[use.role, use.visit, use.attempt, use.step].append(use)
        elif (record := ModelCall(**fields)).response_id:
            answered[record.response_id] = record
        else:
            failed[record.role, record.visit, record.attempt].append(record)
    return answered, failed, uses


def _visit(
    span: Span,
    responses: Sequence[str],
    sources: _Sources,
    tries: Mapping[tuple[str, int], int],
    before: Sequence[ShownVisit],
) -> ShownVisit:
    role, number = str(span.attributes["role"]), int(span.attributes["visit"])
    attempt = int(span.attributes.get("attempt", 1))
    calls: list[ShownCall] = []
    shown = 0
    for place, response in enumerate(responses, start=1):
        # Calls that failed count as steps, but are no responses.
        record = sources.records.get(response)
        step = place if record is None else record.step
        following = sources.exchanges.get(responses[place]) if place < len(responses) else None
        call = _call((role, number, attempt, step), response, sources, following, shown)
        # The answer is also a message of the next call, where it is not new.
        shown = len(call.exchange.messages) + 1 if call.exchange else shown
        calls.append(call)
    for record in sources.failed.get((role, number, attempt), ()):
        calls.append(ShownCall(record.step, None, record, (), None, (), None))
    return ShownVisit(
        role=role,
        model=str(span.attributes["model"]),
        number=number,
        attempt=attempt,
        broken=attempt < tries[role, number],
        because=_because(role, before) if number > 1 and role in RETURNED_TO else {},
        seconds=None if span.start_time is None or span.end_time is None else span.end_time - span.start_time,
        calls=tuple(calls),
    )


def _call(
    place: tuple[str, int, int, int],
    response: str,
    sources: _Sources,
    following: TracedCall | None,
    shown: int,
) -> ShownCall:
    exchange, record = sources.exchanges.get(response), sources.records.get(response)
    tool_answers = {
        message["tool_call_id"]: message["content"]
        for message in (following.messages if following else ())
        if message["role"] == "tool"
    }
    tool_calls = (exchange.choice["message"].get("tool_calls") or ()) if exchange else ()
    answers = [tool_answers.get(tool_call["id"]) for tool_call in tool_calls]
    uses = sources.uses.get(place, ())
    return ShownCall(
        step=place[3],
        exchange=exchange,
        record=record,
        new=tuple(exchange.messages[shown:]) if exchange else (),
        answer=_answer(place[0], exchange, record),
        tools=tuple(
            ShownToolCall(use, answers[position] if position < len(answers) else None)
            for position, use in enumerate(uses)
        ),
        tokens=sources.tokens.get(response),
        branches=tuple(sources.branches.get(response, ())),
    )


def _answer(role: str, exchange: TracedCall | None, record: ModelCall | None) -> Mapping[str, Any] | None:
    """The answer as the society read it, or as the judge's was read, whose visits are called otherwise."""
    content = (exchange.choice["message"].get("content") or "") if exchange else ""
    if not content or (record is not None and not record.parsed):
        return None
    completion = Completion({}, content, (), "stop", 0, 0, "", None)
    try:
        return read_answer(ROLES.get(role, JUDGE), completion, exchange.messages if exchange else ()).model_dump()
    except ValueError:
        return None


def _because(role: str, before: Sequence[ShownVisit]) -> dict[str, Mapping[str, Any]]:
    """The latest reviews that were severe enough to send `role` back."""
    latest = {visit.role: visit.answer for visit in before if visit.role in REVIEWERS}
    severe = ("CRITICAL",) if role == REFINER else ("MAJOR", "CRITICAL")
    return {name: review for name, review in latest.items() if review is not None and worst_severity(review) in severe}


def _notes(record: RolloutRecord, spans: Sequence[Span], reported: bool, learned: bool) -> list[str]:
    notes = []
    if not spans:
        notes.append("The rollout left no trace, so none of its model calls can be shown.")
    elif not reported:
        exchanges = sum(span.name == EXCHANGE for span in spans)
        notes.append(
            f"Its trace has no outcome, so which role asked for the exchanges in it ({exchanges}) is not known."
        )
    if record.missing:
        notes.append(f"It has no reward, because these parts have no value: {', '.join(record.missing)}.")
    if not learned:
        notes.append(
            "There is no token record: an algorithm that learns token by token writes one of the rollouts that it has "
            f"learned from, and none learned so from this one, which is of phase {record.phase}."
        )
    return notes
