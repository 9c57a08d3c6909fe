"""The web server: its socket, its address, and limits on connections."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
from collections.abc import Callable, Sequence

import attrs
import uvicorn
from starlette.types import ASGIApp

from sm_profiler.errors import ConfigError

DEFAULT_PORT = 8899
MAX_CONNECTIONS = 256
QUIET_S = 15  # an idle connection is closed
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
    """Open a port: the given one, or the default one, or any if that is taken.

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
        except (OSError, OverflowError) as error:
            opened.close()
            if port is None and number and getattr(error, "errno", None) == errno.EADDRINUSE:
                continue
            raise ConfigError(f"cannot listen on {host} port {number}: {getattr(error, 'strerror', error)}") from None
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


def run(app: ASGIApp, sockets: Sequence[socket.socket], on_end: Callable[[], object]) -> None:
    """Serve until interrupted."""
    with contextlib.suppress(AttributeError, OSError):  # of glibc; each thread would keep what it freed
        ctypes.CDLL(None).mallopt(ARENA_MAX, ARENAS)
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False, proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=QUIET_S, timeout_graceful_shutdown=LEAVE_S, backlog=128,
    )  # fmt: skip
    try:
        uvicorn.Server(config).run(sockets=list(sockets))
    except KeyboardInterrupt:
        return
    finally:
        on_end()
