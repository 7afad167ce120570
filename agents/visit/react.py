"""One visit of one role: reason, call tools, answer in the role's schema.

A visit sends only its own messages to the model, never those of other roles or of earlier visits. The opening message
holds the feedback on earlier visits, so prompts do not grow with revisions.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from agents.context import RunContext
from agents.roles import Role
from agents.schemas import Answer, ExperimentProtocol, FinalDecision
from agents.tools.result import ToolResult
from agents.visit import citations
from agents.visit.prompting import Message, canonical, repair_message, schema_in, tool_message
from agents.visit.quoting import answer_format, fault, numbered, resolved
from agents.visit.record import ModelCall, ToolUse
from agents.visit.rules import broken
from chimera.core.errors import ModelError, RateLimitError, UnreachableError
from chimera.serving.client import Completion, ToolCall

_FENCES = ("```", "```json")


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one model call, or of a visit: an answer, or an error; neither if the model called tools.

    `rule`: the hard rule that the answer broke.
    """

    answer: Answer | None = None
    error: str | None = None
    rule: str | None = None

    @property
    def used_tools(self) -> bool:
        """True if the model called tools, so the visit continues."""
        return self.answer is None and self.error is None


def read_answer(role: Role, completion: Completion, messages: Sequence[Message] = ()) -> Answer:
    """Parse the completion as the role's schema, without the Markdown fence that chat models put around JSON.

    Args:
        messages: The visit's messages. They name the options, if the task has any, and their numbered sentences replace
            the numbers in the answer.

    Raises:
        ValueError: The answer does not fit the schema; the message is one short sentence for the repair request.
    """
    if completion.tool_calls:
        raise ValueError("no tools are offered now: answer with the JSON object")
    if completion.refusal:
        raise ValueError(f"the model's server refused to answer: {' '.join(completion.refusal.split())[:400]}")
    if not completion.content.strip():
        raise ValueError("the answer is empty")
    try:
        schema = schema_in(role, messages)
        return resolved(schema.model_validate_json(_unfenced(completion.content)), messages)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc'])) or 'answer'}: {fault['msg']}" for fault in error.errors())
        cut = " (it was cut at the token limit)" if completion.finish_reason == "length" else ""
        raise ValueError("; ".join(faults)[:400] + cut) from error


def _unfenced(text: str) -> str:
    """`text` without the Markdown fence around it, if there is one."""
    lines = text.strip().split("\n")
    fenced = len(lines) > 2 and lines[0].rstrip() in _FENCES and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1]) if fenced else text


def echo(completion: Completion) -> Message:
    """The assistant message in the form that later requests repeat.

    Servers parse tool arguments in a conversation as JSON (vLLM answers 400 otherwise), so unreadable arguments become
    {}; the tool's answer quotes them. Servers need text where no tool was called, so missing text becomes empty text.
    """
    message = dict(completion.message)
    if not completion.tool_calls:
        return {**message, "content": message.get("content") or ""}
    message["tool_calls"] = [
        call if parsed.arguments is not None else {**call, "function": {**call["function"], "arguments": "{}"}}
        for call, parsed in zip(message["tool_calls"], completion.tool_calls, strict=True)
    ]
    return message


@dataclass(slots=True)
class Visit:
    """One visit of `role`: `number` counts its visits in the run from 1, `attempt` the tries of this visit."""

    role: Role
    context: RunContext
    number: int
    attempt: int
    messages: list[Message]
    _step: int = field(default=0, init=False)
    _tool_calls: int = field(default=0, init=False)
    _fell_back: bool = field(default=False, init=False)

    async def run(self) -> Reply:
        """Work from the opening `messages` to an answer: tool calls first, then the JSON, with one repair request.

        Where the model's answer cannot be read after that either, or its call failed, the rest of the visit is that of
        the role's second model, if it has one (`society.fallback`).

        Raises:
            ModelError: The model's server failed.
        """
        reply = Reply()
        while reply.used_tools:
            left = self._tool_calls < self.context.config.max_tool_calls
            reply = await self._ask(self._tools if left else ())
        if reply.error is not None:
            self.messages.append(repair_message(reply.error, self.context.brief.goal))
            reply = await self._ask((), repair=True)
        if reply.error is not None and self._fall_back():
            self.messages.append(repair_message(reply.error, self.context.brief.goal))
            reply = await self._ask((), repair=True)
        return reply

    def _fall_back(self) -> bool:
        """Go over to the role's second model; False if it has none, or is asked already."""
        first, self._fell_back = not self._fell_back, self.role.name in self.context.fallback
        return first and self._fell_back

    @property
    def _slot(self) -> str:
        """The slot whose model is asked now."""
        return (self.context.fallback if self._fell_back else self.context.slots)[self.role.name]

    @property
    def _tools(self) -> Sequence[str]:
        """Names of the tools that the role may call."""
        return self.context.tools[self.role.name]

    async def _ask(self, tools: Sequence[str], *, repair: bool = False) -> Reply:
        """Make one model call, record it, and answer every tool call in it."""
        self._step += 1
        started = time.perf_counter()
        try:
            completion = await self.context.model.complete(
                self._slot,
                list(self.messages),
                tools=self.context.toolbox.specs(tools) if tools else (),
                response_format=answer_format(self.role, self.messages, self.context.config.quotes),
                seed=self.context.seed_of(self.role.name, self.number, self._step),
            )
        except ModelError as error:
            self._record(None, started, Reply(error=str(error)), repair=repair)
            if isinstance(error, UnreachableError | RateLimitError) or not self._fall_back():
                raise
            return await self._ask(tools, repair=repair)
        self.messages.append(echo(completion))
        reply = Reply() if completion.tool_calls and tools else self._read(completion, last=repair)
        self._record(completion, started, reply, repair=repair)
        first = self._tool_calls
        self._tool_calls += len(completion.tool_calls)
        used = await asyncio.gather(
            *(self._use(call, first + position, tools) for position, call in enumerate(completion.tool_calls))
        )
        for call, (use, content) in zip(completion.tool_calls, used, strict=True):
            self.context.observe(use)
            self.messages.append(tool_message(call.id, self._quotable(content), self.context.brief.goal))
        return reply

    def _quotable(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """A tool's answer; the sentences of its passages are numbered if roles quote by number."""
        if self.context.config.quotes != "numbered" or not content.get("results"):
            return content
        return {**content, "results": numbered(content["results"], self.messages)}

    def _read(self, completion: Completion, *, last: bool) -> Reply:
        """Read the answer. The role is told once of false quotes and citations, and of a broken hard rule; after that
        quotes and citations are left to the reviewers, and the rule forbids GO."""
        try:
            answer = read_answer(self.role, completion, self.messages)
        except ValueError as error:
            return Reply(error=str(error))
        rule = self._broken(answer)
        if last:
            return Reply(answer=answer, rule=rule)
        wrong = (
            fault(answer, self.messages, self.context.config.quotes)
            or citations.fault(answer, self.messages)
            or (rule and f"the hard rule {rule} forbids this: leave it out")
        )
        return Reply(error=wrong, rule=rule) if wrong else Reply(answer=answer)

    def _broken(self, answer: Answer) -> str | None:
        """The hard rule that an answer breaks by what it would have done."""
        rules = self.context.config.hard_rules()
        if isinstance(answer, ExperimentProtocol):
            return broken(rules, answer.model_dump())
        return broken(rules, answer.amendments) if isinstance(answer, FinalDecision) else None

    def _refusal(self, call: ToolCall, position: int, offered: Sequence[str], rule: str | None) -> str | None:
        """Why a call is refused, as the answer to the model; None if it runs.

        Args:
            position: Its index in the visit.
            rule: The hard rule that it breaks.
        """
        limit = self.context.config.max_tool_calls
        if self._tools and position >= limit:
            return f"tool call limit reached ({limit} per turn): answer now with the JSON object"
        if call.name not in offered:
            return f"no tool {call.name!r} here: the tools are {', '.join(offered) or 'none'}"
        if call.arguments is None:
            return f"the arguments of {call.name} are not a JSON object: {call.raw_arguments[:200]!r}"
        return rule and f"the hard rule {rule} forbids this call: ask for something else"

    async def _use(self, call: ToolCall, position: int, offered: Sequence[str]) -> tuple[ToolUse, dict[str, Any]]:
        """Run or refuse one tool call; returns its record and the content of its answer."""
        started = time.perf_counter()
        arguments = call.arguments or {}
        rule = broken(self.context.config.hard_rules(), arguments)
        refusal = self._refusal(call, position, offered, rule)
        if refusal is None:
            result = await self.context.toolbox.call(call.name, arguments, brief=self.context.brief)
        else:
            result = ToolResult(call.name, ok=False, error=refusal, valid=False)
        use = ToolUse(
            role=self.role.name,
            visit=self.number,
            step=self._step,
            tool=call.name,
            arguments=call.raw_arguments if call.arguments is None else canonical(arguments),
            valid=result.valid,
            ok=result.ok,
            results=tuple(passage.id for passage in result.passages),
            error=result.error,
            seconds=time.perf_counter() - started,
            attempt=self.attempt,
            fault=result.fault,
            rule=rule,
        )
        return use, result.content()

    def _record(self, completion: Completion | None, started: float, reply: Reply, *, repair: bool) -> None:
        call = ModelCall(
            role=self.role.name,
            model=self._slot,
            visit=self.number,
            step=self._step,
            response_id=completion.response_id if completion else "",
            weights_version=completion.weights_version if completion else None,
            finish_reason=completion.finish_reason if completion else "error",
            prompt_tokens=completion.prompt_tokens if completion else 0,
            completion_tokens=completion.completion_tokens if completion else 0,
            seconds=time.perf_counter() - started,
            parsed=None if completion is None or reply.used_tools else reply.answer is not None,
            repair=repair,
            error=reply.error,
            attempt=self.attempt,
            rule=reply.rule,
        )
        self.context.observe(call)
