"""The server over streamable HTTP, on this machine only."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from sm_profiler.errors import ConfigError

HOST = "127.0.0.1"


def serve(server: MCPServer[Any], port: int, on_start: Callable[[str], object]) -> None:
    """Serve until Ctrl-C.

    Requests with another Host or Origin than this machine's are refused: a web page that a user opens could send them.

    Args:
        server: the server.
        port: where to listen; 0 for any free port.
        on_start: called with the address.

    Raises:
        ConfigError: the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on port {port}: {error.strerror or error}") from None
    port = listener.getsockname()[1]
    names = [f"{HOST}:{port}", f"localhost:{port}"]
    security = TransportSecuritySettings(allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names])
    app = server.streamable_http_app(stateless_http=True, json_response=True, transport_security=security, host=HOST)
    on_start(f"http://{HOST}:{port}/mcp")
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
