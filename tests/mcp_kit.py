"""MCP servers for tests: a program that speaks through its input and output, and one on loopback."""

import sys
import threading
from contextlib import contextmanager

PROGRAM = '''
import asyncio, os, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("lab")

@server.tool()
def dose(drug: str, milligrams: float, days: int = 1) -> str:
    """Say how much of a drug was given.

    Three arguments: a text and two numbers.
    """
    return f"Patients took {milligrams * days:g} mg of {drug} altogether, over {days} days."

@server.tool()
def environment() -> str:
    """Name the environment variables."""
    return " ".join(sorted(os.environ)) + f" {os.environ.get('LAB_KEY')} {os.getpid()}"

@server.tool()
def broken() -> str:
    """Fail."""
    raise ValueError("no such thing")

@server.tool()
def end() -> str:
    """End the server."""
    os._exit(3)

@server.tool()
async def hang() -> str:
    """Hang."""
    await asyncio.Event().wait()

if __name__ == "__main__":
    server.run("stdio")
'''


def write_program(folder):
    """The command of a server, written to `folder`."""
    file = folder / "mcp_lab_server.py"
    file.write_text(PROGRAM)
    return (sys.executable, str(file))


@contextmanager
def serve_http():
    """A server over streamable HTTP; yields its address and the list of the keys that it was called with."""
    import uvicorn

    names = {"__name__": "mcp_lab_server"}
    exec(PROGRAM, names)
    inner, keys = names["server"].streamable_http_app(), []

    async def app(scope, receive, send):
        keys.extend(value.decode() for name, value in scope.get("headers", []) if name == b"authorization")
        await inner(scope, receive, send)

    ready = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets=None):
            await super().startup(sockets)
            ready.set()

    server = Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp", keys
    finally:
        server.force_exit = server.should_exit = True
        thread.join(10)
