"""LangChain tools that are not Chimera's own: `module:name` in `roles.<role>.tools`.

What they return becomes passages, like the results of all other tools: quoted data of limited length. They may search
the web, so the article behind a question is removed from it. A role has read what it got, so it may quote it. Equal
calls are answered once in a process, because rollouts, branches and replays ask again.
"""

import asyncio
import contextvars
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from agents.tools.leaks import MIN_DIGITS
from agents.tools.live.http import SearchCache
from agents.tools.text.passages import Passage, ToolError, content_id
from agents.tools.tool import Tool
from chimera.config.roles import target, tool_name
from chimera.core.errors import ConfigError
from chimera.core.imports import load_named
from chimera.core.secrets import redact

MOST_THREADS = 16
"""Most calls of one synchronous tool that run at a time. A call that hangs keeps its thread."""
_LONGEST_FAILURE = 300
_NOTHING = ("", "null", "[]", "{}")


def load_tool(reference: str, setting: str) -> BaseTool:
    """The LangChain tool `module:name` or `module:name as other_name` that `setting` names.

    Raises:
        ConfigError: It cannot be imported, or is no LangChain tool.
    """
    tool = load_named(target(reference), f"{setting} names {reference!r}")
    if isinstance(tool, BaseTool):
        return tool
    if isinstance(tool, type) and issubclass(tool, BaseTool):
        raise ConfigError(f"{setting} names {reference!r}, which is a class: name a tool that is made of it")
    raise ConfigError(
        f"{setting} names {reference!r}, which is a {type(tool).__name__} and no LangChain tool: put @tool (from "
        "langchain_core.tools) above the function"
    )


def foreign_tool(reference: str, base: BaseTool, timeout_s: float) -> Tool:
    """A tool that runs `base`, with at most `timeout_s` seconds for a call."""
    return Tool(tool_name(reference), base, Runs(tool_name(reference), base, timeout_s).find, live=True)


class Runs:
    """Runs one LangChain tool within a time limit; whatever it does wrong is a `ToolError`."""

    def __init__(self, name: str, tool: BaseTool, timeout_s: float) -> None:
        self._name = name
        self._tool = tool
        self._timeout_s = timeout_s
        self._cache = SearchCache()
        self._threads = threading.Semaphore(MOST_THREADS)

    async def find(self, arguments: Mapping[str, Any]) -> Sequence[Passage]:
        """The passages that the tool returns for `arguments`.

        Raises:
            ToolError: It failed, or did not answer in time.
        """
        key = json.dumps(arguments, sort_keys=True)
        return await self._cache.get(key, lambda: self._answer(arguments))

    async def _answer(self, arguments: Mapping[str, Any]) -> Sequence[Passage]:
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return passages_of(self._name, await self._call(arguments))
        except ToolError:
            raise
        except Exception as error:
            if deadline.expired():
                raise ToolError(f"{self._name} did not answer within {self._timeout_s:g} s (tools.timeout_s)") from None
            failure = redact(f"{type(error).__name__}: {error}")[:_LONGEST_FAILURE]
            raise ToolError(f"{self._name} failed ({failure})") from error

    async def _call(self, arguments: Mapping[str, Any]) -> Any:
        call = {"type": "tool_call", "id": "call", "name": self._tool.name, "args": dict(arguments)}
        if not _is_synchronous(self._tool):
            return await self._tool.ainvoke(call)
        if not self._threads.acquire(blocking=False):
            raise ToolError(f"{self._name} has not yet ended {MOST_THREADS} earlier calls: try again later")

        def invoke() -> Any:
            try:
                return self._tool.invoke(call)
            finally:
                self._threads.release()

        return await in_thread(invoke)


async def in_thread(function: Callable[[], Any]) -> Any:
    """Run `function` in a thread of its own. Unlike asyncio's threads, one that hangs does not hold up the exit."""
    loop, result = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if result.done():
            return  # Nobody waits any more.
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error if isinstance(error, Exception) else RuntimeError(f"it raised {error!r}"))

    def work() -> None:
        value, failure = None, None
        try:
            value = context.run(function)
        except BaseException as error:  # noqa: BLE001  handed to the waiting task
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, name="tool", daemon=True).start()
    return await result


def _is_synchronous(tool: BaseTool) -> bool:
    """True if `ainvoke` would only run the tool in one of asyncio's threads."""
    if hasattr(tool, "coroutine"):
        return getattr(tool, "coroutine") is None  # noqa: B009  LangChain's own tools have it, BaseTool has not
    return type(tool)._arun is BaseTool._arun


def passages_of(name: str, result: Any) -> list[Passage]:
    """The passages in what a LangChain tool returned: its own, a document each, or one with all of its text.

    Raises:
        ToolError: The tool says that it failed.
    """
    text = result.text if isinstance(result, ToolMessage) else str(result)
    if isinstance(result, ToolMessage) and result.status == "error":
        raise ToolError(f"{name} failed ({redact(text)[:_LONGEST_FAILURE]})")
    parts = result.artifact if isinstance(result, ToolMessage) else None
    if isinstance(parts, list) and parts and all(isinstance(part, Passage) for part in parts):
        return parts
    if isinstance(parts, list) and parts and all(isinstance(part, Document) for part in parts):
        return [_passage(name, document) for document in parts]
    return [] if text.strip() in _NOTHING else [Passage(content_id(name, text), "", text)]


def _passage(name: str, document: Document) -> Passage:
    about = {key: str(value) for key, value in document.metadata.items() if isinstance(value, str | int)}
    url = next((value for value in about.values() if value.startswith(("http://", "https://"))), None)
    id_ = document.id or about.get("id") or url or content_id(name, document.page_content)
    linked = tuple(value for value in about.values() if not value.isdigit() or len(value) >= MIN_DIGITS)  # no pages
    return Passage(id_, about.get("title", ""), document.page_content, url, linked)
