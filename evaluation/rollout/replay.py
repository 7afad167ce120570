"""A rollout once more, from its trace: the society runs again, with the recorded answers in place of models and tools.

The same code comes to the same state, so hypotheses, reviews, decision and reward follow from what the models answered.
A rubric is no model: it is computed again. What was asked is compared too: an answer counts only for its own question.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.context import Candidates, Choice, SupervisorChoice
from agents.findings import FINDINGS
from agents.policies.society import of_versions
from agents.society import Society, Start
from agents.state import ResearchState
from agents.tools.result import ToolResult
from agents.tools.text.passages import Passage
from agents.visit.prompting import canonical, payload_of
from agents.visit.quoting import passage_text
from agents.visit.record import CallRecord
from chimera.config.tree import Config
from chimera.core.errors import ChimeraError, ModelError, RunError
from chimera.core.types import Brief, ResearchTask
from chimera.rubric.grader import grade
from chimera.run.policies import BY_MODEL
from chimera.serving.client import Completion, read_completions
from evaluation.records.rollouts import RolloutRecord
from evaluation.scores.judge import Judge
from evaluation.scores.rewards import compute_reward, last_attempts
from evaluation.traces.calls import TracedCall

Visit = tuple[str, int]
"""A role, and which of its visits."""
JUDGE_FAILED = "the judge's model failed: "

_visit: ContextVar[Visit] = ContextVar("visit")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a rollout comes to: the society's outputs, the reward's parts, and their sum."""

    outputs: dict[str, Any]
    parts: dict[str, float | None]
    reward: float | None


class Replay:
    """Replays rollouts of one run, one at a time; the society is built once.

    Args:
        run: The run's folder, which holds what had been learned.
    """

    def __init__(self, config: Config, run: Path) -> None:
        self._config = config
        self._run = run
        self._recorded = _Recorded({}, {}, {})
        self._records: list[CallRecord] = []
        self._society = Society(
            self,
            self,
            config.society,
            config.roles,
            evaluate=Judge(self, config.judge_of).evaluate,
            operation=self._operation,
            observe=self._observe,
        )

    async def run(
        self,
        record: RolloutRecord,
        calls: Sequence[TracedCall],
        tools: Sequence[Mapping[str, Any]],
        task: ResearchTask,
        start: Start | None = None,
    ) -> Replayed:
        """Run the society on `task` with the answers that its trace holds.

        Args:
            record: What was recorded of the rollout; taken from it is who chose among hypotheses.
            tools: Its calls as its outcome lists them; taken from them is which tool calls were valid.
            start: Where the rollout went on from; None for a whole one.

        Raises:
            ChimeraError: The trace does not hold a whole rollout, or an answer is not one to what is asked.
        """
        with self._answers(record, calls, tools):
            state = await self._society.run(task.brief(), record.seed, start=start, **self._learned(record))
        return self._ended(state, () if start is None else start.records, task)

    def _ended(self, state: ResearchState, before: Sequence[CallRecord], task: ResearchTask) -> Replayed:
        """What a finished state comes to; `before` are the calls that it took before the replay began."""
        left = [f"{role}, visit {visit}" for (role, visit), queue in self._recorded.queues.items() if queue]
        if left:
            raise RunError(f"its trace holds answers that nobody asked for: {left[0]}")
        reward = compute_reward(state, [*before, *self._records], task, self._config.reward)
        outputs = {key: value for key, value in state.items() if key != "messages"}
        return Replayed(json.loads(json.dumps(outputs)), dict(reward.parts), reward.total)

    async def before(
        self,
        role: str,
        record: RolloutRecord,
        calls: Sequence[TracedCall],
        tools: Sequence[Mapping[str, Any]],
        task: ResearchTask,
    ) -> Start:
        """What the society had done when `role` was to work for the first time; arguments and errors as for `run`."""
        with self._answers(record, calls, tools):
            state = await self._society.before(role, task.brief(), record.seed, **self._learned(record))
        # Of juniors, who work at the same time, the state holds what the others have done.
        return Start(role, state, [earlier for earlier in self._records if earlier.role != role])

    def _learned(self, record: RolloutRecord) -> dict[str, Any]:
        """Who chose in the rollout, and what had been learned for the society as a whole."""
        learned = of_versions(self._run, record.policy_versions)
        return {"select": _RecordedChoice(record), "learned": learned}

    @contextmanager
    def _answers(
        self, record: RolloutRecord, calls: Sequence[TracedCall], tools: Sequence[Mapping[str, Any]]
    ) -> Iterator[None]:
        """Answer from this rollout's trace; what it lacks is told."""
        try:
            self._recorded = _Recorded.of(record, calls, tools)
            self._records = []
            yield
        except ChimeraError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise RunError(f"its trace cannot be read: {type(error).__name__}: {error}") from error

    # --- as the society's model

    async def complete(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """The recorded answer to `messages`.

        Raises:
            RunError: There is none, it was given to other messages, or a rubric does not answer so.
            ModelError: The judge's model failed, as is recorded.
        """
        visit = _visit.get()
        role, number = visit
        call = self._recorded.next(visit)
        if call is None:
            raise RunError(f"{role}, visit {number}: its trace has no further answer")
        if _plain(call.messages) != _plain(messages):
            raise RunError(f"{role}, visit {number}: its trace has the answer to another question")
        if self._config.models[key].kind == "rubric":
            _check_rubric(call, visit, messages, options.get("response_format"))
        return _completion(call)

    # --- as the society's tools

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """No schemas: the recorded answers need none."""
        return [{"name": name} for name in names]

    async def call(self, name: str, arguments: Mapping[str, Any], *, brief: Brief) -> ToolResult:
        """The recorded result of a tool call; raises RunError if there is none."""
        return self._recorded.result(_visit.get(), name, canonical(arguments))

    def _observe(self, record: CallRecord) -> None:
        self._records.append(record)

    @contextmanager
    def _operation(self, name: str, attributes: dict[str, Any]) -> Iterator[None]:
        token = _visit.set((str(attributes["role"]), int(attributes["visit"])))
        try:
            yield
        finally:
            _visit.reset(token)


@dataclass(slots=True)
class _Recorded:
    """What the trace still holds: answers by visit, and what the tools gave that the visit's last answer called."""

    queues: dict[Visit, list[TracedCall]]
    valid: Mapping[tuple[str, int, str, str], bool]
    pending: dict[Visit, list[tuple[str, str, dict[str, Any]]]]
    judge_error: str | None = field(default=None)

    @classmethod
    def of(cls, record: RolloutRecord, calls: Sequence[TracedCall], tools: Sequence[Mapping[str, Any]]) -> "_Recorded":
        """What counts of a rollout's trace."""
        queues: dict[Visit, list[TracedCall]] = {}
        for call in last_attempts(calls):
            queues.setdefault((call.role, call.visit), []).append(call)
        valid = {
            (use["role"], use["visit"], use["tool"], use["arguments"]): bool(use["valid"])
            for use in reversed(tools)  # Only the first of equal calls reached the tool.
            if use.get("kind") == "ToolUse"
        }
        error = (record.outputs.get("final_evaluation") or {}).get("error")
        return cls(queues, valid, {}, error)

    def next(self, visit: Visit) -> TracedCall | None:
        """The visit's next answer; the results of the tools that it calls stand in the messages of the one after."""
        queue = self.queues.get(visit)
        if not queue:
            if visit[0] == "Evaluation" and (self.judge_error or "").startswith(JUDGE_FAILED):
                raise ModelError(str(self.judge_error).removeprefix(JUDGE_FAILED))
            return None
        call = queue.pop(0)
        following = queue[0].messages[len(call.messages) + 1 :] if queue else []
        tool_calls = _completion(call).tool_calls
        answers = [message for message in following if message["role"] == "tool"]
        self.pending[visit] = [
            (use.name, canonical(use.arguments or {}), json.loads(answer["content"]))
            for use, answer in zip(tool_calls, answers, strict=False)
        ]
        return call

    def result(self, visit: Visit, name: str, arguments: str) -> ToolResult:
        """The recorded result of one tool call of the visit's last answer."""
        pending = self.pending.get(visit, [])
        for position, (tool, recorded_arguments, content) in enumerate(pending):
            if (tool, recorded_arguments) == (name, arguments):
                del pending[position]
                if "error" in content:
                    valid = self.valid.get((*visit, name, arguments), False)
                    return ToolResult(name, ok=False, error=content["error"], valid=valid)
                shown = content["results"]
                read = {source["id"] for source in shown}
                apart = [source for source in self._read_apart(visit) if source["id"] not in read] if shown else []
                passages = tuple(Passage(source["id"], "", passage_text(source)) for source in [*shown, *apart])
                return ToolResult(name, ok=True, passages=passages, note=content.get("note"))
        raise RunError(f"{visit[0]}, visit {visit[1]}: its trace has no result of {name} with {arguments}")

    def _read_apart(self, visit: Visit) -> Iterator[Mapping[str, Any]]:
        """Of a search whose studies are read one by one: those that the visits after it were given."""
        role, number = visit
        while (queue := self.queues.get((role, number := number + 1))) and not queue[0].offered:
            payload = payload_of(queue[0].messages)
            if payload.get("form") != FINDINGS:
                return
            yield from payload.get("sources", ())


class _RecordedChoice:
    """Who chose, as it is recorded; where nobody but the supervisor's model did, that is asked."""

    def __init__(self, record: RolloutRecord) -> None:
        self._selection: Mapping[str, Any] = record.outputs["selection"]
        self._choices: Iterator[Mapping[str, Any]] = iter(record.outputs.get("choices", ()))

    def propose(self, candidates: Candidates, seed: int | None) -> Choice | None:
        """What a policy chose before the model was asked."""
        if candidates.cues:
            self._selection = next(self._choices, {})
            if not self._selection:
                raise RunError("its record lacks the choice whether juniors search once more")
        return None if self._selection["preferred"] is not None else self._choice()

    def select(self, candidates: Candidates, preferred: str, seed: int | None) -> Choice:
        """What was chosen after the model was."""
        if self._selection["policy"] == BY_MODEL and self._selection["propensities"] is None:
            return SupervisorChoice().select(candidates, preferred, seed)
        return self._choice()

    def _choice(self) -> Choice:
        chosen = self._selection
        return Choice(chosen["author"], chosen["policy"], chosen["propensities"])


def _completion(call: TracedCall) -> Completion:
    response = {"id": call.response_id, "choices": [call.choice], "weights_version": call.weights_version}
    return read_completions(response, call.role)[0]


def _check_rubric(
    call: TracedCall, visit: Visit, messages: Sequence[Mapping[str, Any]], response_format: Mapping[str, Any] | None
) -> None:
    """Make sure that the rubric answers so."""
    role, number = visit
    name = (response_format or {}).get("json_schema", {}).get("name", "")
    try:
        expected = grade(name, payload_of([dict(message) for message in messages]))
        answered = json.loads(call.choice["message"]["content"])
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{role}, visit {number}: what the rubric answered cannot be computed again: {error}") from error
    if json.loads(json.dumps(expected)) != answered:
        raise RunError(f"{role}, visit {number}: the rubric does not answer what its trace holds")


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """What counts of messages: proxies add empty fields."""
    return [
        (
            message["role"],
            message.get("content") or "",
            message.get("tool_call_id") or "",
            [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []],
        )
        for message in messages
    ]
