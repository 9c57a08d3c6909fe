"""Owners of TCP connections on this machine (Linux): clients of the endpoint run code, so they must be the same user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED, LISTENING = "01", "0A"


@attrs.frozen
class Connection:
    """One row of a table: ports, state, and the user who owns the socket."""

    local_port: int
    remote_port: int
    state: str
    user: int


def is_own_listener(port: int) -> bool:
    """Return whether only this user's programs listen on a port; True if the system does not report owners."""
    return all(
        found.user == os.getuid()
        for found in connections(port)
        if found.state == LISTENING and found.local_port == port
    )


def is_own_client(client_port: int, server_port: int) -> bool:
    """Return whether this user owns the client's end of a connection; True if the system does not report owners.

    The end of a client that has already closed it has no owner and is refused.
    """
    listed = list(connections(server_port))
    if not any(found.state == LISTENING and found.local_port == server_port for found in listed):
        return True  # not Linux, or a sandbox that hides connections
    return any(
        found.user == os.getuid()
        for found in listed
        if (found.state, found.local_port, found.remote_port) == (ESTABLISHED, client_port, server_port)
    )


def connections(port: int) -> Iterator[Connection]:
    """Yield the TCP connections with a port at either end; none if the system does not report them."""
    for table in TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            if f":{port:04X} " not in line:
                continue
            _, local, remote, state, *_, user = line.split()[:8]
            yield Connection(_port(local), _port(remote), state, int(user))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
