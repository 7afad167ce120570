"""Tools of MCP servers as LangChain tools: `mcp:SERVER/TOOL` in `roles.<role>.tools`, the server in `tools.mcp`.

A process has one session with each server, in a thread of its own, because a session belongs to one event loop. A
server that Chimera starts ends with this process, and gets only the environment variables that it is given. MCP's own
client is used, since langchain-mcp-adapters needs mcp < 2, and LiteLLM mcp >= 2.2.
"""

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from chimera.config.roles import MCP, tool_name
from chimera.config.sections.tools import McpServer
from chimera.core.errors import ConfigError
from chimera.processes import guard

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as McpTool

START_SECONDS = 60.0
"""Limit of the start of a server. Some are downloaded first."""
STOP_SECONDS = 10.0
_SAID, _TAIL = 300, 4000

T = TypeVar("T")


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
        """The tool `mcp:SERVER/TOOL` that `setting` names.

        Raises:
            ConfigError: The server cannot be started or reached, or has no such tool.
        """
        name = reference.removeprefix(MCP).partition("/")[0]
        if name not in self._sessions:
            session = Session(f"tools.mcp.{name}", self._servers[name], self._secrets)
            self._wait(session.open(), START_SECONDS)
            self._sessions[name] = session
        session = self._sessions[name]
        local_name = tool_name(reference)
        if local_name not in session.tools:
            there = ", ".join(session.tools) or "none"
            raise ConfigError(f"{setting} names {reference!r}, but the tools of tools.mcp.{name} are {there}")
        return self._langchain(session, session.tools[local_name])

    def close(self) -> None:
        """End the sessions, and the servers that were started for them."""
        if self._loop is not None:
            for session in self._sessions.values():
                self._wait(session.close(), STOP_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._sessions, self._loop = {}, None

    def _langchain(self, session: "Session", tool: "McpTool") -> BaseTool:
        async def call(**arguments: Any) -> str:
            return await asyncio.wrap_future(self._submit(session.call(tool.name, arguments)))

        return StructuredTool(
            name=tool.name, description=tool.description or tool.name, args_schema=tool.input_schema, coroutine=call
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
        self.tools: dict[str, McpTool] = {}

    async def open(self) -> None:
        """Connect, and ask for the server's tools; raises ConfigError if the server cannot be started or reached."""
        try:
            client = await self._connected()
            self.tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told as one sentence
            await self.close()
            how = self._server.url or " ".join(self._server.command)
            raise ConfigError(f"{self._setting} ({how}) does not work as an MCP server: {self._why(error)}") from None

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """What a tool returned, as text; raises ToolException if the tool failed."""
        client = await self._connected()
        try:
            result = await client.call_tool(name, arguments)
        except Exception:
            if self._client is not None and self._client.done() and self._client.result() is client:
                await self.close()  # It may be broken, and opening another costs little.
            raise
        text = _text(result)
        if result.is_error:
            raise ToolException(text or "it did not say why")
        return text

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
            async with _client(self._server, self._environment, self._log) as client:
                ready.set_result(client)
                await end.wait()
        except Exception as error:  # noqa: BLE001  whoever waits gets it; a session that ends badly is over
            if not ready.done():
                ready.set_exception(error)

    def _why(self, error: BaseException) -> str:
        file = self._log.fileno()  # The server shares its position, so it is not moved.
        written = os.pread(file, _TAIL, max(0, os.fstat(file).st_size - _TAIL)).decode("utf-8", "replace")
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        if lines:
            return lines[-1][:_SAID]
        if isinstance(error, asyncio.CancelledError):
            return f"it did not answer within {START_SECONDS:g} s"
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}"[:_SAID]


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

    if server.url is None:
        guarded = [guard.__file__, str(os.getpid()), *server.command]
        parameters = StdioServerParameters(command=sys.executable, args=["-I", "-S", *guarded], env=dict(environment))
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


def _text(result: "CallToolResult") -> str:
    """The texts of a result; its structured content if it has none."""
    from mcp.types import TextContent

    texts: Sequence[str] = [part.text for part in result.content if isinstance(part, TextContent)]
    if texts or result.structured_content is None:
        return "\n\n".join(texts)
    return json.dumps(result.structured_content, ensure_ascii=False)
