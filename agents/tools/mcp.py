"""Tools of MCP servers as LangChain tools: `mcp:SERVER/TOOL` in `roles.<role>.tools`, the server in `tools.mcp`.

A process has one session with each server, in a thread of its own, because a session belongs to one event loop. A
server that Chimera starts ends with this process, and gets only the environment variables that it is given. MCP's own
client is used, since langchain-mcp-adapters needs mcp < 2, and LiteLLM mcp >= 2.2.
"""

import asyncio
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException

from agents.tools.text.passages import Passage, content_id
from chimera.config.roles import mcp_tool, tool_name
from chimera.config.sections.tools import McpServer
from chimera.core.errors import ConfigError
from chimera.core.files import parse_json
from chimera.processes import guard

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, ContentBlock
    from mcp.types import Tool as McpDefinition

START_SECONDS = 60.0
"""Limit of each start of a server. Some are downloaded first."""
STOP_SECONDS = 10.0
MOST_PAGES = 100
"""Most pages of a server's list of tools that are read."""
_SAID, _TAIL = 300, 4000
_STRAY: list[str] = []

T = TypeVar("T")


class McpTool(BaseTool):
    """A server's tool, whose arguments may have any names; its artifact holds the passages."""

    coroutine: Callable[[dict[str, Any]], Awaitable[list[Passage]]]

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        """Run arguments or a tool call. LangChain itself would take arguments called `config` or `self` for its own."""
        is_call = input.get("type") == "tool_call"
        passages = await self.coroutine(input["args"] if is_call else input)
        text = "\n\n".join(passage.text or passage.caution for passage in passages)
        return ToolMessage(text, name=self.name, tool_call_id=input["id"], artifact=passages) if is_call else text

    def _run(self, **arguments: Any) -> Any:
        raise NotImplementedError(f"{self.name} runs asynchronously: call it with ainvoke")


class McpServers:
    """The sessions of this process with MCP servers, which are started when one of their tools is asked for.

    Args:
        secrets: Values of the variables that they name.
    """

    def __init__(self, servers: Mapping[str, McpServer], secrets: Mapping[str, str]) -> None:
        self._servers = servers
        self._secrets = secrets
        self._sessions: dict[str, Session] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def tool(self, reference: str, setting: str) -> BaseTool:
        """The tool `mcp:SERVER/TOOL` or `mcp:SERVER/TOOL as NAME` that `setting` names.

        Raises:
            ConfigError: The server cannot be started or reached, or has no such tool.
        """
        name, server_tool = mcp_tool(reference)
        if name not in self._sessions:
            session = Session(f"tools.mcp.{name}", self._servers[name], self._secrets)
            self._wait(session.open(), START_SECONDS)
            self._sessions[name] = session
        session = self._sessions[name]
        if server_tool not in session.tools:
            there = ", ".join(session.tools) or "none"
            more = f" (its list goes on after {MOST_PAGES} pages, which are not read)" if session.has_more else ""
            raise ConfigError(f"{setting} names {reference!r}, but the tools of tools.mcp.{name} are {there}{more}")
        return self._langchain(session, session.tools[server_tool], tool_name(reference))

    def close(self) -> None:
        """End the sessions, and the servers that were started for them."""
        if self._loop is not None:
            for session in self._sessions.values():
                self._wait(session.close(), STOP_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._sessions, self._loop = {}, None

    def _langchain(self, session: "Session", tool: "McpDefinition", name: str) -> BaseTool:
        async def run(arguments: dict[str, Any]) -> list[Passage]:
            result = await asyncio.wrap_future(self._submit(session.call(tool.name, arguments)))
            return _passages(name, result)

        return McpTool(
            name=name,
            description=tool.description or tool.name,
            args_schema=tool.input_schema,
            coroutine=run,
            metadata={"changes": tool.annotations is not None and tool.annotations.destructive_hint is True},
        )

    def _wait(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        return self._submit(asyncio.wait_for(work, seconds)).result()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)


class Session:
    """A session with one server. If it broke off, the next call opens it again.

    Args:
        secrets: Values of the variables that it names.
    """

    def __init__(self, setting: str, server: McpServer, secrets: Mapping[str, str]) -> None:
        self._setting = setting
        self._server = server
        self._environment = _environment(setting, server, secrets)
        self._log = cast(TextIO, tempfile.TemporaryFile("w+"))  # noqa: SIM115  the server writes to it
        self._client: asyncio.Future[Client] | None = None
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.tools: dict[str, McpDefinition] = {}
        self.has_more = False

    async def open(self) -> None:
        """Connect, and ask for the server's tools; raises ConfigError if the server cannot be started or reached."""
        try:
            client = await self._connected()
            await self._list_tools(client)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told as one sentence
            await self.close()
            how = self._server.url or " ".join(self._server.command)
            raise ConfigError(f"{self._setting} ({how}) does not work as an MCP server: {self._why(error)}") from None

    async def _list_tools(self, client: "Client") -> None:
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            self.tools |= {tool.name: tool for tool in page.tools}
            cursor = page.next_cursor
            if not cursor:
                return
        self.has_more = True

    async def call(self, name: str, arguments: dict[str, Any]) -> "CallToolResult":
        client = await self._connected()
        try:
            return await client.call_tool(name, arguments)
        except Exception as error:
            from mcp import MCPError
            from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST

            # A session that answers is whole, and others are calling through it. An unknown session is invalid.
            whole = isinstance(error, MCPError) and error.code not in (CONNECTION_CLOSED, INVALID_REQUEST)
            if not whole and self._client is not None and self._client.done() and self._client.result() is client:
                await self.close()
            raise

    async def close(self) -> None:
        task, client, self._task, self._client = self._task, self._client, None, None
        self._end.set()
        if task is not None and client is not None:
            if not client.done():
                task.cancel()
            await asyncio.wait([task])

    async def _connected(self) -> "Client":
        if self._client is None or (self._task is not None and self._task.done()):
            self._client = asyncio.get_running_loop().create_future()
            self._end = asyncio.Event()
            # A session must be opened and closed by one task.
            self._task = asyncio.create_task(self._run(self._client, self._end))
        return await asyncio.shield(self._client)

    async def _run(self, ready: "asyncio.Future[Client]", end: asyncio.Event) -> None:
        try:
            async with (
                asyncio.timeout(START_SECONDS) as limit,
                _client(self._server, self._environment, self._log) as client,
            ):
                limit.reschedule(None)
                # What a tool returned is read, whether or not it fits the output schema of its server.
                client.session.validate_tool_result = _accept  # pyright: ignore[reportAttributeAccessIssue]
                ready.set_result(client)
                await end.wait()
        except Exception as error:  # noqa: BLE001  whoever waits gets it; a session that ends badly is over
            if not ready.done():
                ready.set_exception(TimeoutError(self._why(error)) if isinstance(error, TimeoutError) else error)

    def _why(self, error: BaseException) -> str:
        file = self._log.fileno()  # The server shares its position, so it is not moved.
        written = os.pread(file, _TAIL, max(0, os.fstat(file).st_size - _TAIL)).decode("utf-8", "replace")
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        if lines:
            return lines[-1][:_SAID]
        if isinstance(error, asyncio.CancelledError | TimeoutError):
            return f"it did not answer within {START_SECONDS:g} s"
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return " ".join(f"{type(error).__name__}: {error}".split())[:_SAID]


def _environment(setting: str, server: McpServer, secrets: Mapping[str, str]) -> dict[str, str]:
    """The variables that a server names, with their values."""
    names = (*server.env, *([server.api_key_env] if server.api_key_env else []))
    for name in names:
        if not secrets.get(name):
            raise ConfigError(f"{setting} names {name}, which is not set: put it in the environment or .env")
    return {name: secrets[name] for name in names}


@asynccontextmanager
async def _client(server: McpServer, environment: Mapping[str, str], log: TextIO) -> AsyncIterator["Client"]:
    """A connected client. A local server's messages go to `log`."""
    from mcp import Client, StdioServerParameters, stdio_client

    logging.getLogger("mcp.client.stdio").addFilter(_first_stray_line)
    if server.url is None:
        guarded = [guard.__file__, str(os.getpid()), *server.command]
        parameters = StdioServerParameters(command=sys.executable, args=["-I", "-S", *guarded], env=dict(environment))
        parameters.encoding_error_handler = "replace"
        async with Client(stdio_client(parameters, errlog=log)) as client:
            yield client
        return
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    key = environment.get(server.api_key_env or "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=START_SECONDS) as http,
        Client(streamable_http_client(server.url, http_client=http)) as client,
    ):
        yield client


async def _accept(name: str, result: "CallToolResult") -> None:
    """Accept a result as it is."""


def _first_stray_line(record: logging.LogRecord) -> bool:
    """Log only the first line of a server's output that is no message, without the client's traceback."""
    if not record.exc_info:
        return True
    record.msg, record.exc_info = f"{record.msg}: a program of tools.mcp writes other lines to its output", None
    first, _STRAY[:] = not _STRAY, [record.msg]
    return first


def _passages(name: str, result: "CallToolResult") -> list[Passage]:
    """The texts of a result as one passage, and a passage with a caution for each part that holds no text.

    Raises:
        ToolException: The tool failed.
    """
    parts = [_part(part) for part in result.content]
    texts = [text for text, _ in parts if text.strip()]
    shown = " ".join([*texts, *(leaf for text in texts for leaf in _leaves(_parsed(text)))])
    if not all(leaf in shown for leaf in _leaves(result.structured_content)):
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    unread = [f"{name} returned {what}" for _, what in parts if what]
    if result.is_error:
        raise ToolException(" ".join([*texts, *unread]) or "it did not say why")
    text = "\n\n".join(texts)
    whole = [Passage(content_id(name, text), "", text)] if texts else []
    return whole + [Passage(name, "", "", caution=what) for what in unread]


def _parsed(text: str) -> Any:
    """The JSON value that a text is; None if it is none."""
    try:
        return parse_json(text)
    except ValueError:
        return None


def _part(part: "ContentBlock") -> tuple[str, str]:
    """The text of one part of a result, or in words what it is."""
    from mcp.types import EmbeddedResource, ResourceLink, TextContent, TextResourceContents

    if isinstance(part, TextContent):
        return part.text, ""
    if isinstance(part, ResourceLink):
        about = f" ({part.description})" if part.description else ""
        return "", f"a link, which was not followed: {part.title or part.name} {part.uri}{about}"
    if isinstance(part, EmbeddedResource):
        content = part.resource
        if isinstance(content, TextResourceContents):
            return content.text, ""
        return "", f"the file {content.uri} ({content.mime_type or 'of no known type'}), which cannot be read as text"
    return "", f"{part.type} data ({part.mime_type}), which cannot be read as text"


def _leaves(value: Any) -> list[str]:
    """The texts and numbers in a JSON value."""
    if isinstance(value, Mapping | list):
        return [leaf for part in (value.values() if isinstance(value, Mapping) else value) for leaf in _leaves(part)]
    return [] if value is None or isinstance(value, bool) else [str(value)]
