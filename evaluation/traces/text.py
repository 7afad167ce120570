"""A rollout as an outline: a rich tree on a terminal, lists that fold in a notebook, indented lines elsewhere."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.text import Text
from rich.tree import Tree as RichTree

from agents.roles import SUPERVISOR
from agents.visit.prompting import read_payload
from agents.visit.quoting import passage_text
from chimera.show.ask import SEVERITY_COLOURS, chooser
from chimera.show.card import printable
from evaluation.scores.rewards import part_title
from evaluation.traces.branches import Branch
from evaluation.traces.token_lines import GRADIENT_WORDS, HEAD, credit_line, token_lines
from evaluation.traces.token_records import TokenRecord
from evaluation.traces.tree import ShownCall, ShownToolCall, ShownVisit, Tree

GIVEN_NAMES = {"choice": "given choice", "justification": "sentence on the given choice"}
"""Names of the answer's fields where the supervisor's model did not choose: a choice was given to it."""


class Outline(RichTree):
    """A line of the outline with the lines below it."""

    def __init__(self, text: str, style: str = "") -> None:
        super().__init__(Text(printable(text), style=style), guide_style="dim")

    def below(self, text: str, style: str = "") -> "Outline":
        """Put a line below this one and return it."""
        line = Outline(text, style)
        self.children.append(line)
        return line

    def __repr__(self) -> str:
        return "\n".join(_plain_lines(self))

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, str]:
        """What a notebook shows: lists that fold, open down to the visits. A rich tree would not fold."""
        return {"text/plain": repr(self), "text/html": _folded(self, open_levels=1)}


def outline(
    tree: Tree,
    *,
    messages: bool = False,
    pieces: Mapping[str, Sequence[str]] | None = None,
    gradients: Mapping[str, str] | None = None,
) -> Outline:
    """The whole rollout.

    Args:
        messages: Whether to show what each model was sent.
        pieces: The texts of the tokens of calls, by response id; what PPO learned from each token is shown with them.
        gradients: A line on the gradient of calls that PPO learned from, by response id.
    """
    record = tree.record
    root = Outline(f"{record.rollout_id}: {record.outputs.get('research_goal', f'task {record.task_id}')}", "bold")
    for name, text in facts(tree):
        root.below(f"{name}: {text}", "red" if name == "error" else "")
    for note in (*tree.notes, *([GRADIENT_WORDS] if pieces is not None and tree.learned else [])):
        root.below(f"note: {note}", "yellow")
    for visit in tree.visits:
        _add_visit(root, visit, tree, messages, None if pieces is None else _Learned(pieces, gradients or {}))
    _add_outcome(root, tree)
    return root


def facts(tree: Tree) -> list[tuple[str, str]]:
    """What the rollout was, by name."""
    record = tree.record
    found = [
        ("task", f"{record.task_id}, repeat {record.repeat}, seed {record.seed}, phase {record.phase}"),
        ("status", f"{record.status}{'' if record.seconds is None else f' after {record.seconds:.2f} s'}"),
    ]
    if record.error:
        found.append(("error", record.error))
    found.append(("answer", f"{record.answer or 'none'}, and the answer key says {record.label}"))
    found.append(("decision", f"{record.decision or 'none'}{f', vetoed by {record.veto}' if record.veto else ''}"))
    found.append(("reward", number(record.reward)))
    used = {
        model: ", ".join(versions) for model, versions in record.weights_versions.items() if versions
    } or record.policy_versions
    found.append(("models", "; ".join(f"{model}: {version}" for model, version in used.items()) or "not known"))
    return found


def title(visit: ShownVisit) -> str:
    """Title of a visit: role and visit number."""
    again = f", visit {visit.number}" if visit.number > 1 else ""
    tries = f", try {visit.attempt}" if visit.attempt > 1 or visit.broken else ""
    return f"{visit.role}{again}{tries}"


def player(visit: ShownVisit) -> str:
    """The logical model, the weights behind it, and how long it took."""
    weights = dict.fromkeys(call.weights for call in visit.calls if call.weights)
    took = "" if visit.seconds is None else f", {visit.seconds:.2f} s"
    return f"{visit.model}: {', '.join(weights) or 'no weights known'}{took}"


def reason(visit: ShownVisit) -> str | None:
    """Why a visit is a revision; None if it is not a revision."""
    if not visit.because:
        return None
    reviews = " and ".join(f"{name} ({review['severity']})" for name, review in visit.because.items())
    return f"revision {visit.number - 1}: sent back by {reviews}"


def call_line(call: ShownCall) -> str:
    found = [f"call {call.step}: {call.finish_reason or 'how it ended is not known'}"]
    if call.record is not None:
        record = call.record
        found.append(f"{record.prompt_tokens} + {record.completion_tokens} tokens, {record.seconds:.2f} s")
        if record.repair:
            found.append("the one re-ask after an unreadable answer")
        if record.error:
            found.append(f"error: {record.error}")
    if call.exchange is None and not (call.record and call.record.error):
        found.append("its exchange is not in the trace")
    return "; ".join(found)


def tool_line(tool: ShownToolCall) -> str:
    use = tool.use
    end = f"found {', '.join(use.results)}" if use.results else "found nothing"
    state = end if use.ok else f"{'failed' if use.valid else 'refused'}: {use.error}"
    return f"{use.tool} {use.arguments} -> {state} ({use.seconds:.2f} s)"


def tool_texts(answer: str) -> list[tuple[str, str]]:
    """A tool's answer in parts: each passage under its id, an error as "error", other text unchanged."""
    try:
        told = json.loads(answer)
    except ValueError:
        return [("text", answer)]
    results = told.get("results") if isinstance(told, dict) else None
    if isinstance(results, list) and all(map(_is_passage, results)):
        return [(str(one["id"]), str(passage_text(one))) for one in results]
    return [("error", str(told["error"]))] if isinstance(told, dict) and "error" in told else [("text", answer)]


def _is_passage(result: Any) -> bool:
    return (
        isinstance(result, dict) and "id" in result and ("text" in result or isinstance(result.get("sentences"), dict))
    )


def gist(answer: Mapping[str, Any] | None) -> str:
    """An answer in a few words."""
    if answer is None:
        return "no readable answer"
    if "severity" in answer:
        return f"{answer['verdict']}, {answer['severity']}"
    if "decision" in answer:
        return f"answer: {answer['answer']}, {answer['decision']}"
    for name in ("choice", GIVEN_NAMES["choice"], "answer", "expected"):
        if name in answer:
            return f"{name}: {answer[name]}"
    return ""


def field_lines(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An answer's fields by name; lists have one line for each item."""
    found: list[tuple[str, str]] = []
    for name, value in answer.items():
        title = name.replace("_", " ")
        if isinstance(value, list):
            found += [(title, str(item)) for item in value] or [(title, "none")]
        else:
            found.append((title, str(value)))
    return found


def shown_answer(visit: ShownVisit) -> Mapping[str, Any] | None:
    """A visit's answer. A choice that the supervisor's model was given, and its sentence on it, are named so."""
    if visit.answer is None or visit.role != SUPERVISOR or not visit.calls or visit.calls[-1].exchange is None:
        return visit.answer
    given = any("chosen" in read_payload(message) for message in visit.calls[-1].exchange.messages)
    return {GIVEN_NAMES[name]: value for name, value in visit.answer.items()} if given else visit.answer


def selection_lines(selection: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines on who chose among the hypotheses, and with which probabilities."""
    found = [("chosen", str(selection["author"])), ("chosen by", chooser(selection))]
    if selection["preferred"] is not None:
        found.append(("the model preferred", str(selection["preferred"])))
    propensities = selection["propensities"]
    known = propensities and ", ".join(f"{author} {share:.1%}" for author, share in propensities.items())
    found.append(("probability of each", known or "not known"))
    return found


def number(value: float | None) -> str:
    """A number with three decimals; "none" for None."""
    return "none" if value is None else f"{value + 0.0:.3f}"  # 0.0 is added because a penalty of nothing is -0.0.


def _plain_lines(line: RichTree, depth: int = 0) -> list[str]:
    below = [text for child in line.children for text in _plain_lines(child, depth + 1)]
    return [f"{'  ' * depth}{line.label}", *below]


def _folded(line: RichTree, open_levels: int) -> str:
    text = escape(str(line.label))
    if not line.children:
        return f"<div>{text}</div>"
    below = "".join(_folded(child, open_levels - 1) for child in line.children)
    state = ' open=""' if open_levels > 0 else ""
    return f'<details{state}><summary>{text}</summary><div style="margin-left: 1.5em">{below}</div></details>'


def _add_visit(root: Outline, visit: ShownVisit, tree: Tree, messages: bool, learned: "_Learned | None") -> None:
    node = root.below(f"{title(visit)} ({player(visit)})", "bold cyan")
    if (why := reason(visit)) is not None:
        node.below(why, "yellow")
    if visit.broken:
        node.below("the model's server failed, so the visit was tried again", "yellow")
    for call in visit.calls:
        below = node.below(call_line(call), "dim" if call.answer is not None else "")
        if messages:
            for message in call.new:
                below.below(f"[{message['role']}] {message.get('content') or ''}", "dim")
        for tool in call.tools:
            line = below.below(tool_line(tool), "" if tool.use.ok else "red")
            if tool.answer is not None:
                for name, text in tool_texts(tool.answer):
                    line.below(f"[{name}] {text}", "dim")
        if call.answer is None and call.text:
            below.below(f"unread: {call.text}", "red")
        if learned is not None and call.tokens is not None and call.exchange is not None:
            _add_tokens(below, call.tokens, call.exchange.response_ids, learned)
        for phase in dict.fromkeys(branch.phase for branch in call.branches):
            own = [branch for branch in call.branches if branch.phase == phase]
            asked = below.below(branches_line(phase, own), "dim")
            for branch in own if learned is not None else ():
                style = "" if branch.advantage is None else "green" if branch.advantage > 0 else "magenta"
                answer = asked.below(branch_line(branch), style)
                if learned is not None and branch.tokens is not None:
                    _add_tokens(answer, branch.tokens, branch.ids, learned)
    if (shown := shown_answer(visit)) is not None:
        style = SEVERITY_COLOURS.get(str(shown.get("severity")), "")
        for name, text in field_lines(shown):
            node.below(f"{name}: {text}", style)
    if visit.role == SUPERVISOR and "selection" in tree.record.outputs and visit is _last(tree, visit.role):
        for name, text in selection_lines(tree.record.outputs["selection"]):
            node.below(f"{name}: {text}")


def branches_line(phase: str, branches: Sequence[Branch]) -> str:
    """How often a phase asked a call's prompt again, and what the answers that it learned from were worth."""
    worths = [branch.worth for branch in branches if branch.worth is not None]
    told = f", {len(worths)} learned from, worth {min(worths):z.3f} to {max(worths):z.3f}" if worths else ""
    return f"{phase} asked it again: {len(branches)} answers{told}"


def branch_line(branch: Branch) -> str:
    """One further answer: who gave it, what PPO made of it, and its text."""
    learned = ""
    if branch.update is not None and branch.worth is not None and branch.advantage is not None:
        learned = f", update {branch.update}: worth {branch.worth:z.3f}, advantage {branch.advantage:+z.3f}"
    return f"[{branch.weights}{learned}] {branch.text or 'asked for a tool'}"


@dataclass(frozen=True, slots=True)
class _Learned:
    """Texts of the tokens, and a line on the gradient, of calls that PPO learned from, by response id."""

    pieces: Mapping[str, Sequence[str]]
    gradients: Mapping[str, str]


def _add_tokens(parent: Outline, record: TokenRecord, ids: Sequence[int] | None, learned: _Learned) -> None:
    node = parent.below(f"PPO: {credit_line(record)}")
    if record.response_id in learned.gradients:
        node.below(learned.gradients[record.response_id])
    node.below(f"token, {', '.join(HEAD)}", "dim")
    texts = learned.pieces.get(record.response_id)
    for line in token_lines(record, ids, list(map(repr, texts)) if texts else None):
        style = "green" if line.advantage > 0 else "magenta"
        node.below("  ".join([line.text, *line.columns()]), style)


def _add_outcome(root: Outline, tree: Tree) -> None:
    outputs, record = tree.record.outputs, tree.record
    if record.decision is not None:
        vetoed = f", vetoed by {record.veto}" if record.veto else ""
        node = root.below(f"answer: {record.answer}, answer key: {record.label}; {record.decision}{vetoed}", "bold")
        if "final_rationale" in outputs:
            node.below(str(outputs["final_rationale"]))
    node = root.below(f"reward {number(record.reward)}", "bold")
    for name, value in record.parts.items():
        node.below(f"{part_title(name)}: {number(value)}")


def _last(tree: Tree, role: str) -> ShownVisit:
    return [visit for visit in tree.visits if visit.role == role][-1]
