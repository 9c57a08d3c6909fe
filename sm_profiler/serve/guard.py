"""Checks of host, origin and token before a request reaches the application, and headers of every answer."""

from __future__ import annotations

import hmac
import re
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

import attrs
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# A host with or without a port, as browsers send it; what else urlsplit makes of a text is not asked.
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,64}\]|[A-Za-z0-9._~-]{0,255})(?::[0-9]{0,5})?")
_ORIGIN = re.compile(rf"null|[A-Za-z][A-Za-z0-9+.-]*://(?P<host>{_HOST.pattern})")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_BODY_BYTES = 8192
STRICT_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": STRICT_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(24)


@attrs.frozen
class Guard:
    """Admits requests to an application.

    A page of another site can make a browser send requests here, and with DNS rebinding even read the answers. Without
    a token, only requests to this machine's own names are therefore answered; with a token, only those that carry it.

    Attributes:
        app: the application.
        base: the path under which a proxy shows the page, `/user/me/proxy/8899`; "" if there is none. Requests with and
            without it are answered, since some proxies remove it.
        token: the token; None if this machine's own names are enough.
        port: distinguishes the cookies of several servers on one machine.
    """

    app: ASGIApp
    base: str = ""
    token: str | None = None
    port: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        answer = self._refusal(scope)
        if answer is None:
            scope, answer = self._without_base(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (answer or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not admitted, or that is only now given its cookie."""
        headers = Headers(scope=scope)
        host = _HOST.fullmatch(headers.get("host", ""))
        if host is None or _ORIGIN.fullmatch(headers.get("origin", "null")) is None:
            return refuse(400, "This request has a malformed Host or Origin.")
        if self.token is None and host["name"].lower().strip("[]") not in LOOPBACK:
            return refuse(
                421, "This address is not one of this machine. Behind a proxy, start serve with --base-url PATH."
            )
        if not self._is_own(headers, scope["method"]):
            return refuse(403, "This request comes from another site.")
        if int(headers.get("content-length") or 0) > MAX_BODY_BYTES or (
            scope["method"] == "POST" and "content-length" not in headers
        ):
            return refuse(413, "This request is too large.")
        return None if self.token is None else self._admit(scope, headers)

    def _admit(self, scope: Scope, headers: Headers) -> Response | None:
        """Return None for a request with the cookie, a cookie for one with the token, and else what is missing."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(name == "token" and self._is_token(value) for name, value in query):
            return self._greet(scope, [(name, value) for name, value in query if name != "token"], headers)
        if self._is_token(self._cookie(headers)):
            return None
        return refuse(403, "Open the address that `sm-profiler serve` printed: it contains the token.")

    def _is_own(self, headers: Headers, method: str) -> bool:
        """Return whether a request comes from our own pages, or from a link that a person may have clicked."""
        site = headers.get("sec-fetch-site")
        if site is not None:
            clicked = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
            return site in {"same-origin", "none"} or clicked
        origin = headers.get("origin")
        return origin is None or origin.partition("://")[2] == headers.get("host", "")

    def _is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    @property
    def _cookie_name(self) -> str:
        return f"sm-profiler-{self.port}"

    def _cookie(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie_name)
        except CookieError:
            return ""
        return found.value if found else ""

    def _greet(self, scope: Scope, query: list[tuple[str, str]], headers: Headers) -> Response:
        """Give the browser the cookie, and send it to the same address without the token, which then is in no history."""
        here = scope["path"].rpartition("/")[2]
        target = (quote(here) or "./") + (f"?{urlencode(query)}" if query else "")
        secure = "; Secure" if headers.get("x-forwarded-proto") == "https" else ""
        cookie = f"{self._cookie_name}={self.token}; Path={self.base or '/'}; HttpOnly; SameSite=Lax{secure}"
        return Response(status_code=303, headers={"location": target, "set-cookie": cookie})

    def _without_base(self, scope: Scope) -> tuple[Scope, Response | None]:
        """Return the request with the path that the application has; the base without its slash is redirected."""
        path = scope["path"]
        if self.base and path == self.base:
            return scope, Response(status_code=307, headers={"location": f"{self.base.rpartition('/')[2]}/"})
        if self.base and path.startswith(f"{self.base}/"):
            path = path[len(self.base) :]
        return {**scope, "path": path, "raw_path": quote(path).encode(), "root_path": ""}, None


def refuse(status: int, why: str) -> Response:
    """Return an answer of one line."""
    return PlainTextResponse(f"{why}\n", status)
