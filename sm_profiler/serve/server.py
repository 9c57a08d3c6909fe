"""The web server: its socket, its address, and limits on connections."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import socket
from collections.abc import Callable, Sequence

import attrs
import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from sm_profiler.errors import ConfigError

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
        """Return the address to open."""
        host = f"[{self.host}]" if ":" in self.host else self.host
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
    """Return a base path with a slash at its start and none at its end; "" for none.

    Raises:
        ConfigError: it is no path.
    """
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
        """Since when it waits for a request; None if it has one."""
        return self._since_s if self._deadline is not None else None

    def cut(self) -> None:
        """End it at once."""
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
        """Forget it."""
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


def run(app: ASGIApp, sockets: Sequence[socket.socket], on_end: Callable[[], object]) -> None:
    """Serve until interrupted."""
    with contextlib.suppress(AttributeError, OSError):  # of glibc; each thread would keep what it freed
        ctypes.CDLL(None).mallopt(ARENA_MAX, ARENAS)
    try:
        uvicorn.Server(config_of(app)).run(sockets=list(sockets))
    except KeyboardInterrupt:
        return
    finally:
        on_end()
