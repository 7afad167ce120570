"""Words on a rollout's visits, calls and answers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agents.roles import SUPERVISOR
from agents.visit.prompting import read_payload
from agents.visit.quoting import passage_text
from chimera.show.ask import chooser
from evaluation.traces.branches import Branch
from evaluation.traces.tree import ShownCall, ShownToolCall, ShownVisit, Tree

GIVEN_NAMES = {"choice": "given choice", "justification": "sentence on the given choice"}
"""Names of the answer's fields where the supervisor's model did not choose: a choice was given to it."""


def facts(tree: Tree) -> list[tuple[str, str]]:
    """What the rollout was, by name, beside its outcome."""
    record = tree.record
    used = {
        model: ", ".join(versions) for model, versions in record.weights_versions.items() if versions
    } or record.policy_versions
    return [
        ("task", f"{record.task_id}, repeat {record.repeat}, seed {record.seed}, phase {record.phase}"),
        *([("error", record.error)] if record.error else []),
        *([("vetoed by", record.veto)] if record.veto else []),
        *(("search once more", search_line(choice)) for choice in record.outputs.get("choices", ())),
        ("models", "; ".join(f"{model}: {version}" for model, version in used.items()) or "not known"),
    ]


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
    phrases = [f"call {call.step}: {call.finish_reason or 'how it ended is not known'}"]
    if call.record is not None:
        record = call.record
        phrases.append(f"{record.prompt_tokens} + {record.completion_tokens} tokens, {record.seconds:.2f} s")
        if record.repair:
            phrases.append("the one re-ask after an unreadable answer")
        if record.error:
            phrases.append(f"error: {record.error}")
    if call.exchange is None and not (call.record and call.record.error):
        phrases.append("its exchange is not in the trace")
    return "; ".join(phrases)


def tool_line(tool: ShownToolCall) -> str:
    use = tool.use
    end = f"found {', '.join(use.results)}" if use.results else "found nothing"
    state = end if use.ok else f"{'failed' if use.valid else 'refused'}: {use.error}"
    state += f" [a fault of the evaluation's: {use.fault}]" if use.fault else ""
    return f"{use.tool} {use.arguments} -> {state} ({use.seconds:.2f} s)"


def tool_texts(answer: str) -> list[tuple[str, str]]:
    """A tool's answer in parts: each passage under its id, its "note", an "error", other text unchanged."""
    try:
        content = json.loads(answer)
    except ValueError:
        return [("text", answer)]
    results = content.get("results") if isinstance(content, dict) else None
    if isinstance(results, list) and all(map(_is_passage, results)):
        note = [("note", str(content["note"]))] if content.get("note") else []
        return [*((str(passage["id"]), str(passage_text(passage))) for passage in results), *note]
    return (
        [("error", str(content["error"]))] if isinstance(content, dict) and "error" in content else [("text", answer)]
    )


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
    lines: list[tuple[str, str]] = []
    for name, value in answer.items():
        title = name.replace("_", " ")
        if isinstance(value, list):
            lines += [(title, str(item)) for item in value] or [(title, "none")]
        else:
            lines.append((title, str(value)))
    return lines


def shown_answer(visit: ShownVisit) -> Mapping[str, Any] | None:
    """A visit's answer. A choice that the supervisor's model was given, and its sentence on it, are named so."""
    if visit.answer is None or visit.role != SUPERVISOR or not visit.calls or visit.calls[-1].exchange is None:
        return visit.answer
    has_choice = any("chosen" in read_payload(message) for message in visit.calls[-1].exchange.messages)
    return {GIVEN_NAMES[name]: value for name, value in visit.answer.items()} if has_choice else visit.answer


def search_line(choice: Mapping[str, Any]) -> str:
    """What was chosen where juniors could search once more, by whom, and with which probabilities."""
    return ", ".join([str(choice["author"]), chooser(choice), *([_shares(choice)] if choice["propensities"] else [])])


def _shares(selection: Mapping[str, Any]) -> str:
    return ", ".join(f"{author} {share:.1%}" for author, share in (selection["propensities"] or {}).items())


def selection_lines(selection: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines on who chose among the hypotheses, and with which probabilities."""
    lines = [("chosen", str(selection["author"])), ("chosen by", chooser(selection))]
    if selection["preferred"] is not None:
        lines.append(("the model preferred", str(selection["preferred"])))
    lines.append(("probability of each", _shares(selection) or "not known"))
    return lines


def number(value: float | None) -> str:
    """A number with three decimals; "none" for None."""
    return "none" if value is None else f"{value + 0.0:.3f}"  # 0.0 is added because a penalty of nothing is -0.0.


def branches_line(phase: str, branches: Sequence[Branch]) -> str:
    """How often a phase asked a call's prompt again, and what the answers that it learned from were worth."""
    worths = [branch.worth for branch in branches if branch.worth is not None]
    worth_range = f", {len(worths)} learned from, worth {min(worths):z.3f} to {max(worths):z.3f}" if worths else ""
    return f"{phase} asked it again: {len(branches)} answers{worth_range}"


def branch_line(branch: Branch) -> str:
    """One further answer: who gave it, what PPO made of it, and its text."""
    learned = ""
    if branch.update is not None and branch.worth is not None and branch.advantage is not None:
        learned = f", update {branch.update}: worth {branch.worth:z.3f}, advantage {branch.advantage:+z.3f}"
    return f"[{branch.weights or 'unknown weights'}{learned}] {branch.text or 'asked for a tool'}"
