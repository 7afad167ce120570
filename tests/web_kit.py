"""HTTP servers on loopback, each in a thread of its own, and HTML pages as tests read them."""

import threading
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from chimera.core.machine import listen_at
from chimera.planted import Planted, make_app


@contextmanager
def answering(answer, *, every_method=False):
    """The address of a server whose answers, as (status, headers, body), are `answer(path, headers, body)`.

    It takes POST only, or also GET and PUT.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, headers, data = answer(self.path, self.headers, body)
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        if every_method:
            do_GET = do_PUT = do_POST

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving(app, **options):
    """The address of an ASGI application; `options` are uvicorn's."""
    import uvicorn

    with listen_at(0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, **{"log_level": "warning", **options}))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.force_exit = server.should_exit = True
            thread.join(10)


@contextmanager
def planted_server(**options):
    """The address of a planted server (`chimera.planted`); `options` are those of `Planted`."""
    with serving(make_app(Planted(**options))) as address:
        yield f"{address}/v1"


class Page(HTMLParser):
    """A page's tags and their attributes in order, ids, addresses and text. What is opened must be closed in order."""

    VOID = ("meta", "br", "link", "img", "hr", "input")

    def __init__(self, text):
        super().__init__()
        self.elements, self.tags, self.ids, self.links, self.text, self._open = [], [], [], [], "", []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("href", "src", "action")]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data
