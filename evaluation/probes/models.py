"""What the server of a slot can do, found by asking it with prompts of the slot's own roles.

Each ability is asked for alone, so that a failed rollout later has a known cause. Servers differ most in what they do
with tools and a JSON schema in one request: some refuse it, some then never call a tool.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agents.context import Tools
from agents.roles import ROLES, Role
from agents.visit.prompting import Message, opening, response_format
from agents.visit.react import read_answer
from chimera.config.tree import Config
from chimera.core.errors import ModelError, UnreachableError
from chimera.serving.client import Completion, Endpoint, HttpModel
from evaluation.probes.context import ROOM, told_context
from evaluation.probes.probed import Level, Probed

SEED = 7


class ModelProbe:
    """Probes one slot.

    Attributes:
        unreachable: True if no server is at its address, so that other slots with this address need no probe.
    """

    def __init__(self, config: Config, slot: str, endpoint: Endpoint, tools: Tools, goal: str) -> None:
        self.unreachable = False
        self._config, self._slot, self._endpoint, self._tools, self._goal = config, slot, endpoint, tools, goal
        self._area = f"models.{slot}"
        self._told: list[str] = []
        self._response_ids: list[str] = []

    async def findings(self) -> list[Probed]:
        """All findings on the slot; if its server does not answer, only that."""
        played = [role for name, role in ROLES.items() if self._config.slot(name) == self._slot]
        first = await self._reached(played[0] if played else None)
        probes = [first]
        if first.level is Level.FAULT or not played:
            return probes
        probes.append(await self._schema(played[0]))
        searching = [role for role in played if self._config.roles.tool_names()[role.name]]
        if searching:
            probes.append(await self._searches(searching[0]))
        probes += [await self._context(), await self._repeats(played[0]), await self._token_ids(played[0])]
        probes += self._ids()
        return probes + [self._finding("fields", Level.WARNING, message) for message in dict.fromkeys(self._told)]

    async def _reached(self, role: Role | None) -> Probed:
        """Whether the server answers; `role` is None for a slot that only grades."""
        started = time.perf_counter()
        try:
            completion = await self._ask(role)
        except ModelError as error:
            self.unreachable = isinstance(error, UnreachableError)
            return self._finding("answers", Level.FAULT, str(error))
        seconds = time.perf_counter() - started
        speed = completion.completion_tokens / seconds if seconds > 0 else 0.0
        text = (
            f"{self._endpoint.model} at {self._endpoint.base_url} gave {completion.completion_tokens} tokens in "
            f"{seconds:.1f} s ({speed:.0f} tokens/s for one request), to {completion.prompt_tokens} of prompt"
        )
        if completion.finish_reason == "length":
            return self._finding(
                "answers",
                Level.WARNING,
                f"{text}; the answer was cut at max_tokens={self._endpoint.max_tokens}: raise {self._area}.max_tokens",
            )
        return self._finding("answers", Level.OK, text)

    async def _schema(self, role: Role) -> Probed:
        sends = self._config.models[self._slot].sends_schema
        remedy = f"set {self._area}.structured=never"
        try:
            completion = await self._ask(role, schema=True)
        except ModelError as error:
            level = Level.NOTE if sends == "never" else Level.FAULT
            return self._finding("JSON schema", level, f"refused ({error}): {remedy}")
        try:
            read_answer(role, completion)
        except ValueError as error:
            level = Level.NOTE if sends == "never" else Level.WARNING
            return self._finding("JSON schema", level, f"an answer of {role.name} did not follow it ({error})")
        return self._finding("JSON schema", Level.OK, f"an answer of {role.name} follows it")

    async def _searches(self, role: Role) -> Probed:
        """Whether a role with tools calls one in the way that rollouts ask it to."""
        config = self._config.models[self._slot]
        if self._config.society.evidence == "given" or self._config.society.max_tool_calls == 0:
            return self._finding("tools", Level.NOTE, "not needed: roles do not have to search with these settings")
        alone, together = await self._calls(role, schema=False), await self._calls(role, schema=True)
        outcome = together if config.sends_schema == "always" else alone
        summary = f"without a JSON schema {_said(alone)}; beside one {_said(together)}"
        if outcome is True:
            return self._finding("tools", Level.OK, f"{role.name}: {summary}")
        if alone is True:
            return self._finding("tools", Level.WARNING, f"{role.name}: {summary}; set {self._area}.structured=final")
        if together is True:
            return self._finding("tools", Level.WARNING, f"{role.name}: {summary}; set {self._area}.structured=always")
        level = Level.FAULT if isinstance(outcome, str) else Level.WARNING
        remedy = (
            "see that the server was started with tool calls (vLLM: --enable-auto-tool-choice --tool-call-parser NAME) "
            "and that the model can make them, or set society.evidence=given"
        )
        return self._finding("tools", level, f"{role.name}: {summary}; {remedy}")

    async def _calls(self, role: Role, *, schema: bool) -> bool | str:
        """Whether the model called a tool; the server's refusal if it refused."""
        try:
            completion = await self._ask(role, schema=schema, tools=self._config.roles.tool_names()[role.name])
        except ModelError as error:
            return str(error)
        return bool(completion.tool_calls)

    async def _context(self) -> Probed:
        """Whether the server's context has room for a prompt beside the longest answer."""
        model = self._config.models[self._slot]
        length, answer = await told_context(self._endpoint), model.max_completion_tokens or model.max_tokens
        if length is None:
            text = f"not told by {self._endpoint.base_url}/models: a prompt that does not fit fails its rollout"
            return self._finding("context", Level.NOTE, text)
        text = f"{length:,} tokens, of which an answer may take {answer:,}"
        if length - answer >= ROOM:
            return self._finding("context", Level.OK, text)
        key = "max_tokens" if model.max_completion_tokens is None else "max_completion_tokens"
        remedy = f"lower {self._area}.{key}, or have the server take more"
        return self._finding(
            "context", Level.WARNING, f"{text}, so prompts of more than {max(0, length - answer):,} fail: {remedy}"
        )

    async def _repeats(self, role: Role) -> Probed:
        """Whether equal seeds give equal answers, which repeated and paired rollouts rely on."""
        try:
            first, other = [(await self._ask(role, seed=SEED)).content for _ in range(2)]
        except ModelError as error:
            return self._finding("seed", Level.WARNING, f"a request with a seed failed: {error}")
        if first == other:
            return self._finding("seed", Level.OK, "equal seeds gave equal answers")
        return self._finding(
            "seed", Level.NOTE, "equal seeds gave different answers, so a rollout made again is another rollout"
        )

    async def _token_ids(self, role: Role) -> Probed:
        """Whether the server tells the token ids, which training on a slot's own tokens needs."""
        model = HttpModel({self._slot: self._endpoint}, max_retries=0)
        request = model.request(self._slot, opening(role, self._goal)) | {"return_token_ids": True}
        try:
            answer = json.loads(await model.ask(self._slot, request))
            has_ids = bool(answer.get("prompt_token_ids")) and bool(answer["choices"][0].get("token_ids"))
        except (ModelError, ValueError, KeyError, IndexError, TypeError, AttributeError):
            has_ids = False
        finally:
            await model.aclose()
        if has_ids:
            return self._finding("token ids", Level.OK, "told, so traces show the model's own tokens")
        return self._finding("token ids", Level.NOTE, "not told: traces show text only, and no tokens can be learned")

    def _ids(self) -> list[Probed]:
        """A finding if the server's answers cannot be told apart by their ids, by which traces know them."""
        empty = self._response_ids.count("")
        repeated = len(self._response_ids) - empty - len({*self._response_ids} - {""})
        if not empty and not repeated:
            return []
        text = f"of {len(self._response_ids)} answers {empty} had no id and {repeated} the id of another answer"
        return [self._finding("response ids", Level.NOTE, f"{text}; each gets an id of its own, so traces are whole")]

    async def _ask(
        self, role: Role | None, *, schema: bool = False, tools: Sequence[str] = (), seed: int | None = None
    ) -> Completion:
        endpoint = replace(self._endpoint, structured="always" if schema else "never")
        model = HttpModel({self._slot: endpoint}, max_retries=0, tell=self._told.append)
        messages: list[Message] = opening(role, self._goal) if role else [{"role": "user", "content": self._goal}]
        specs: list[dict[str, Any]] = self._tools.specs(tools) if tools else []
        form: Mapping[str, Any] | None = response_format(role) if role and schema else None
        try:
            completion = await model.complete(self._slot, messages, tools=specs, response_format=form, seed=seed)
        finally:
            await model.aclose()
        self._response_ids.append(completion.response_id)
        return completion

    def _finding(self, what: str, level: Level, text: str) -> Probed:
        return Probed(self._area, what, level, text)


def _said(called: bool | str) -> str:
    if isinstance(called, str):
        return f"it was refused ({called})"
    return "it calls a tool" if called else "it calls none"
