"""The web server: its socket, its address, and limits on connections."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import hmac
import re
import signal
import socket
from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl, quote, urlencode

import attrs
import h11
import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from sm_profiler.errors import ConfigError

# A host with or without a port, as browsers send it; what else urlsplit makes of a text is not asked.
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,64}\]|[A-Za-z0-9._~-]{0,255})(?::[0-9]{0,5})?")
_ORIGIN = re.compile(rf"null|[A-Za-z][A-Za-z0-9+.-]*://(?P<host>{_HOST.pattern})")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ANY = ("", "0.0.0.0", "::")  # noqa: S104 - all addresses of this machine
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
        # A body of unknown length is refused with any method: it would be kept until its end.
        unknown = "transfer-encoding" in headers or (scope["method"] == "POST" and "content-length" not in headers)
        if unknown or int(headers.get("content-length") or 0) > MAX_BODY_BYTES:
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
        # Not by http.cookies, which takes seconds for a long quoted value in Python before 3.11.10 and 3.12.6; ours has none.
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == self._cookie_name), "")

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
    return PlainTextResponse(f"{why}\n", status)


DEFAULT_PORT = 8899
MAX_CONNECTIONS = 256
QUIET_S = 15  # an idle connection is closed
REQUEST_S = 20.0  # a request has to be whole by then
ARENA_MAX, ARENAS = -8, 2  # mallopt's number of the limit, and the limit
LEAVE_S = 1  # streams are cut at the end


@attrs.frozen
class Listening:
    """An open port.

    Attributes:
        socket: its socket.
        host, port: its address.
    """

    socket: socket.socket
    host: str
    port: int

    def url(self, base: str, token: str | None) -> str:
        host = socket.gethostname() if self.host in _ANY else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}{base}/" + (f"?token={token}" if token else "")


def listen(host: str, port: int | None) -> Listening:
    """Open a port: the given port, or the default, or any if that is taken.

    Raises:
        ConfigError: the port is taken, or the address is not one of this machine.
    """
    for number in (DEFAULT_PORT, 0) if port is None else (port,):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((host, number))
            opened.listen(128)
        except OverflowError:
            opened.close()
            raise ConfigError(f"--port {number}: expected a number from 0 to 65535") from None
        except OSError as error:
            opened.close()
            if port is None and number and error.errno == errno.EADDRINUSE:
                continue
            raise ConfigError(f"cannot listen on {host} port {number}: {error.strerror or error}") from None
        return Listening(opened, host, opened.getsockname()[1])
    raise AssertionError("port 0 is never taken")


def clean_base(path: str) -> str:
    """Return a base path with a slash at its start and none at its end; "" for none."""
    parts = path.strip("/").split("/")
    if path.strip("/") and any(part in {"", ".", ".."} or not part.isprintable() for part in parts):
        raise ConfigError(f"--base-url {path}: not a path")
    if any(sign in path for sign in "?#;, \\:"):
        raise ConfigError(f"--base-url {path}: give the path only, as in /user/me/proxy/8899")
    return f"/{path.strip('/')}" if path.strip("/") else ""


class _Connection(H11Protocol):
    """A connection that cannot be held open without a request.

    uvicorn limits the time between two requests only. Here a request must be whole in REQUEST_S, and if there are as many
    connections as are served, a new connection ends the oldest that waits for its client.
    """

    _deadline: asyncio.TimerHandle | None = None
    _since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._watch()
        if len(self.connections) >= MAX_CONNECTIONS:
            others = (other for other in self.connections if isinstance(other, _Connection) and other is not self)
            waiting = [other for other in others if other.is_waiting]
            if waiting:
                min(waiting, key=lambda other: (other.since_s is None, other.since_s or 0.0)).cut()

    @property
    def is_waiting(self) -> bool:
        """True if nothing happens until the client sends or reads more."""
        return self.conn.their_state in {h11.IDLE, h11.SEND_BODY} or self.transport.get_write_buffer_size() > 0

    @property
    def since_s(self) -> float | None:
        """Since when it waits for a request; None if a request has come."""
        return self._since_s if self._deadline is not None else None

    def cut(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self) -> None:
        """Start the time of the next request, or end it once that is whole."""
        is_incomplete = self.conn.their_state in {h11.IDLE, h11.SEND_BODY}
        if is_incomplete and self._deadline is None:
            self._since_s = self.loop.time()
            self._deadline = self.loop.call_later(REQUEST_S, self.cut)
        elif not is_incomplete and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close it; a client that reads nothing does not keep it."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(QUIET_S, self.cut)


def config_of(app: ASGIApp) -> uvicorn.Config:
    """Return how an application is served."""
    return uvicorn.Config(
        app, http=_Connection, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False, proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=QUIET_S, timeout_graceful_shutdown=LEAVE_S, backlog=128,
    )  # fmt: skip


def serve(app: ASGIApp, sockets: Sequence[socket.socket], on_end: Callable[[], object]) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is to be done at the end is done
    with contextlib.suppress(AttributeError, OSError):  # of glibc; each thread would keep what it freed
        ctypes.CDLL(None).mallopt(ARENA_MAX, ARENAS)
    try:
        uvicorn.Server(config_of(app)).run(sockets=list(sockets))
    except KeyboardInterrupt:
        return
    finally:
        on_end()
