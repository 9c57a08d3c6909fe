"""Put first on PYTHONPATH as sitecustomize.py: writes down every attempt of a Python process to leave this machine."""

import os
import sys
from pathlib import Path

HERE = {"127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "", None, b"127.0.0.1", b"localhost"}
WATCHED = {"socket.connect": 1, "socket.sendto": 1, "socket.getaddrinfo": 0, "socket.gethostbyname": 0}


def watch(event, arguments):
    if event not in WATCHED:
        return
    target = arguments[WATCHED[event]]
    host = target[0] if isinstance(target, tuple) else target
    if isinstance(target, str) and event in ("socket.connect", "socket.sendto"):
        return  # a Unix socket
    if host in HERE or (isinstance(host, str) and host.startswith("127.")):
        return
    with Path(os.environ["NETWORK_GUARD_LOG"]).open("a") as file:
        file.write(f"{event} {host!r} by {sys.argv}\n")
    raise OSError(f"this process may not reach {host!r}")


if "NETWORK_GUARD_LOG" in os.environ:
    sys.addaudithook(watch)
