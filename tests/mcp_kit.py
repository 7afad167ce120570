"""MCP servers for tests: a program that speaks through its input and output, and one on loopback."""

import sys
from contextlib import contextmanager

from web_kit import serving

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
    names = {"__name__": "mcp_lab_server"}
    exec(PROGRAM, names)
    inner, keys = names["server"].streamable_http_app(), []

    async def app(scope, receive, send):
        keys.extend(value.decode() for name, value in scope.get("headers", []) if name == b"authorization")
        await inner(scope, receive, send)

    with serving(app, log_level="critical") as address:
        yield f"{address}/mcp", keys


AWKWARD = r"""
import json, sys, time

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
def of(properties, **rest): return {"type": "object", "properties": properties, **rest}

SCHEMAS = {
    "unicode_pattern": of({"text": {"type": "string", "pattern": "^[\\p{L} ]+$"}}, required=["text"]),
    "lost_reference": of({"query": {"$ref": "#/definitions/Lost"}, "days": {"type": "integer"}}, required=["query"]),
    "no_such_type": of({"text": {"type": "str"}}, required=["text"]),
    "either": of({"pmid": {"type": "string"}, "words": {"type": "string"}},
                 oneOf=[{"required": ["pmid"]}, {"required": ["words"]}]),
    "by_reference": {"type": "object", "$ref": "#/$defs/Arguments", "$defs": {"Arguments": TEXT}},
    "odd_names": of({"config": {"type": "string"}, "self": {"type": "string"}}, required=["config", "self"]),
    "free": {"type": "object"},
    "deletes": TEXT,
    **{name: TEXT for name in ("file", "binary", "picture", "link", "rows", "both", "papers.find", "papers/read")},
}
CONTENT = {
    "file": [{"type": "resource", "resource": {"uri": "note://1", "text": "Zinc shortened colds (p=0.01)."}}],
    "binary": [{"type": "resource", "resource": {"uri": "pdf://1", "mimeType": "application/pdf", "blob": "JVBERg=="}}],
    "picture": [{"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}],
    "link": [{"type": "resource_link", "uri": "https://example.org/zinc.pdf", "name": "zinc.pdf"}],
    "rows": [{"type": "text", "text": "1 row"}],
}
CONTENT["both"] = [*CONTENT["file"], *CONTENT["picture"]]
ENDLESS = "--endless" in sys.argv

def answer(method, parameters):
    if method == "initialize":
        versions = {"protocolVersion": parameters["protocolVersion"], "serverInfo": {"name": "awkward", "version": "1"}}
        return {**versions, "capabilities": {"tools": {}}}
    if method == "tools/list":
        number = int(parameters.get("cursor") or 0)
        names = list(SCHEMAS)[5 * number:5 * number + 5]
        tools = [{"name": name, "inputSchema": SCHEMAS[name]} for name in names]
        for tool in tools:
            if tool["name"] == "deletes":
                tool["annotations"] = {"destructiveHint": True}
            if tool["name"] == "rows":
                tool["outputSchema"] = {"type": "object", "properties": {"x": {"pattern": "\\p{L}"}}, "required": ["x"]}
        return {"tools": tools, **({"nextCursor": str(number + 1)} if ENDLESS or 5 * number + 5 < len(SCHEMAS) else {})}
    name, arguments = parameters["name"], parameters.get("arguments")
    text = [{"type": "text", "text": f"{name} got {json.dumps(arguments, sort_keys=True)}"}]
    structured = {"structuredContent": {"rows": [{"pmid": 4711}]}} if name == "rows" else {}
    return {"content": CONTENT.get(name, text), **structured}

print("The server starts.", flush=True)
sys.stdout.buffer.write(b"caf\xe9\n")
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    reply = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] in ("initialize", "tools/list", "tools/call"):
        reply["result"] = answer(request["method"], request.get("params") or {})
    else:
        reply["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(reply), flush=True)
if "--stays" in sys.argv:
    time.sleep(3600)
"""
"""A server whose tools are awkward but legal, on several pages, and which prints lines that are no messages.

With --endless its pages have no end, and with --stays it does not end with its input.
"""


def write_awkward(folder, *arguments):
    """The command of the awkward server, written to `folder`."""
    file = folder / "mcp_awkward_server.py"
    file.write_text(AWKWARD)
    return (sys.executable, str(file), *arguments)
