"""Who may use the viewer: the browser that was given its key, at its own address, and no other page.

The key comes once in the address (`?key=...`), goes into a cookie that scripts cannot read, and is redirected out of
the address. A request for another host name is refused, so that a foreign page cannot reach the viewer by a name of
its own that it points to this machine. A POST must also come from the viewer's own pages.
"""

import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

KEY = "key"
METHODS = ("GET", "HEAD", "POST")
POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Content-Security-Policy of every page: nothing from other hosts, nothing inline."""
HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware in front of all routes, static files included.

    Args:
        app: The application, which stays an attribute.
    """

    def __init__(self, app: ASGIApp, *, key: str, port: int) -> None:
        self.app = app
        self._key = key
        self._cookie = f"chimera_view_{port}"
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Content-Security-Policy", POLICY)
            await send(message)

        answer = self._refusal(scope) or self._welcome(scope)
        await (answer or self.app)(scope, receive, sent)

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request is not answered; None if it may be."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            return PlainTextResponse(
                f"This viewer answers only at {' and '.join(sorted(self._hosts))}; a tunnel must keep the port.\n", 421
            )
        if not (self._fits(self._given(scope)) or self._fits(self._kept(headers))):
            return PlainTextResponse("Open the address with the key that `python -m chimera view` printed.\n", 401)
        if scope["method"] not in METHODS:
            return PlainTextResponse("Only GET, HEAD and POST are answered.\n", 405)
        if scope["method"] == "POST" and headers.get("origin") != f"http://{host}":
            return PlainTextResponse("Only the viewer's own pages may send this.\n", 403)
        return None

    def _welcome(self, scope: Scope) -> Response | None:
        """Takes a key that is in the address out of it; None if there is none."""
        if scope["method"] not in ("GET", "HEAD") or self._given(scope) is None:
            return None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        query = urlencode([(name, value) for name, value in pairs if name != KEY])
        # A path such as //host would lead to another host.
        path = "/" + scope["raw_path"].decode("latin-1").lstrip("/\\")
        answer = RedirectResponse(f"{path}?{query}" if query else path, status_code=303)
        if self._fits(self._given(scope)):
            # Lax, because a strict cookie would not come with the first link from a notebook or a mail.
            answer.set_cookie(self._cookie, self._key, httponly=True, samesite="lax", path="/")
        return answer

    def _given(self, scope: Scope) -> str | None:
        return dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)).get(KEY)

    def _kept(self, headers: Headers) -> str | None:
        return cookie_parser(headers.get("cookie", "")).get(self._cookie)

    def _fits(self, key: str | None) -> bool:
        return key is not None and hmac.compare_digest(key.encode(errors="replace"), self._key.encode())
