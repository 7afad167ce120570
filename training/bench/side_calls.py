"""Model calls beside rollouts: a role's call asked again, or a question to any slot's model.

Each is recorded with its answers in `phases/<phase>/calls.jsonl`. A continued run finds it there: a request that the
phase has recorded is not sent again.
"""

import asyncio
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chimera.config.tree import Config
from chimera.core.errors import ModelError, RunError, UnreachableError
from chimera.core.files import parse_json
from chimera.run.directory import Run
from chimera.run.jsonl import append_line, read_lines
from chimera.serving.client import HttpModel

CALLS = "calls.jsonl"
"""In the phase's folder: one request with its answers a line."""
Kind = Literal["branch", "ask"]


@dataclass(frozen=True, slots=True)
class SideCall:
    """One request and the server's answer, as it is recorded.

    Attributes:
        kind: Whether a recorded call was asked again, or a question of the phase's own was asked.
        response: The JSON object of an OpenAI chat completion.
    """

    kind: Kind
    slot: str
    response: Mapping[str, Any]

    def tokens(self) -> tuple[int, int]:
        """Tokens that the model read and wrote, as its server counts them."""
        usage = self.response.get("usage") or {}
        return usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0


class SideCalls:
    """One phase's calls beside rollouts, straight to the model servers.

    Args:
        model: Reaches the servers; whoever made it closes it.
        check: Raises what keeps all further calls from succeeding, such as the end of the model server.
    """

    def __init__(self, run: Run, phase: str, config: Config, model: HttpModel, check: Callable[[], None]) -> None:
        self._file = run.path / "phases" / phase / CALLS
        self._config = config
        self._check = check
        self._model = model
        self._seats = asyncio.Semaphore(config.rollouts.concurrency)
        self._known = _recorded(self._file)
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def make(
        self,
        kind: Kind,
        slot: str,
        version: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        about: Mapping[str, Any] | None = None,
        n: int = 1,
        temperature: float | None = None,
        log_probs: bool = False,
        **options: Any,
    ) -> SideCall:
        """Ask the model of `slot` for `n` answers to `messages`; a request that is recorded is not sent again.

        Args:
            kind: What the call is for.
            version: Of the slot's weights, or its endpoint's model: other weights answer anew.
            about: What is recorded in place of messages, tools and response format, where another file holds them.
            n: How many answers; servers that do not know `n` give one.
            temperature: None for that of the slot's configuration.
            options: `tools`, `response_format` and `seed`, as in `chimera.serving.client.Model`.

        Raises:
            ModelError: The server failed, or what it answered is no chat completion.
            RunError: The model server has ended.
        """
        request = self._model.request(slot, messages, **options) | ({"n": n} if n > 1 else {})
        request |= {} if temperature is None else {"temperature": temperature}
        request |= {} if self._config.models[slot].kind == "endpoint" else {"return_token_ids": True}
        request |= {"logprobs": True} if log_probs else {}
        key = hashlib.sha256(json.dumps([kind, slot, version, request], sort_keys=True).encode()).hexdigest()
        # Two prompts may be the same: whoever asks second gets what the first one is told.
        async with self._asking[key]:
            if key not in self._known:
                async with self._seats:
                    started = time.perf_counter()
                    response = await self._answer(slot, request)
                long = ("messages", "tools", "response_format") if about else ()
                sent = self._model.sent(slot, request)
                shown = {name: value for name, value in sent.items() if name not in long} | dict(about or {})
                append_line(
                    self._file,
                    {
                        **{"kind": kind, "slot": slot, "version": version, "key": key},
                        **{"request": shown, "response": response, "seconds": round(time.perf_counter() - started, 3)},
                    },
                    sync=True,
                )
                self._known[key] = SideCall(kind, slot, response)
        return self._known[key]

    def spent(self) -> dict[str, float]:
        """Requests, answers, tokens and, for slots with a price, US dollars: of the whole phase, recorded ones too."""
        totals: dict[str, float] = {}
        for call in self._known.values():
            read, written = call.tokens()
            amounts: dict[str, float] = {
                f"{call.kind}_requests": 1,
                f"{call.kind}_answers": len(call.response["choices"]),
                f"{call.kind}_prompt_tokens": read,
                f"{call.kind}_completion_tokens": written,
            }
            if price := self._config.evaluation.prices.get(call.slot):
                amounts[f"{call.kind}_usd"] = (read * price[0] + written * price[1]) / 1e6
            for name, amount in amounts.items():
                totals[name] = totals.get(name, 0) + amount
        return totals

    async def _answer(self, slot: str, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            body = await self._model.ask(slot, request)
        except UnreachableError:
            self._check()
            raise
        completions, where = self._model.read(slot, body), self._model.where(slot)
        try:
            response = parse_json(body)
        except ValueError as error:
            raise ModelError(f"{where} answered 200 with what cannot be recorded: {error}", retriable=True) from error
        if self._config.models[slot].kind == "endpoint":
            for choice, completion in zip(response["choices"], completions, strict=True):
                choice["message"] = completion.message
        return response


def _recorded(file: Path) -> dict[str, SideCall]:
    try:
        return {line["key"]: SideCall(line["kind"], line["slot"], line["response"]) for line in read_lines(file)}
    except KeyError as error:
        raise RunError(f"a line of {file} is no model call ({error} is missing): restore it from a copy") from error
