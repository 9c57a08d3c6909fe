"""The exit code of the process that waits for the monitor: the monitor has it before the process, and its container, are gone.

A process that leaves by `sys.exit` writes its code to its record when Python is gone (`hook.process_end`), and other processes
of the job read it once it has ended. The last process of a node has none after it but the monitor, whose end it waits for.
So it waits twice: in Python until all but its code is uploaded, and then, after the code is written, in a function of C's
`exit`: `fgetc` of a socket that the monitor closes when it has uploaded the record. No other function of the C library waits
for another process and for a limited time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from sm_profiler.descriptors import moved_up, open_descriptor, open_regular
from sm_profiler.formats.layout import EXIT_FOLDER, IGNORED_FOLDER

WAIT_SECONDS = 15  # in `exit`, at most
CODE_SECONDS = 10.0  # for which the monitor waits for the code of a process that may exit
POLL_SECONDS = 0.01
_GO = b"g"
_BACKLOG = 4096
_CREDENTIALS = struct.Struct("3i")  # process, user, group


@attrs.define(eq=False)
class ExitLink:
    """The end of a process that waits for the monitor.

    Attributes:
        record: its record, which lacks the exit code.
        socket: the connection to the monitor.
    """

    record: Path
    socket: socket.socket

    @classmethod
    def open(cls, root: Path, node: str) -> ExitLink | None:
        """Connect with the monitor; None without a record, a monitor that listens, or glibc."""
        found = sorted((root / EXIT_FOLDER).glob(f"*-{node}_{os.getpid()}_*"))
        if not found or not hasattr(ctypes.CDLL(None), "on_exit"):
            return None
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            with _address(root, node) as address:
                connection.connect(address)
        except OSError:
            connection.close()
            return None
        return cls(found[-1], connection)

    def may_exit(self) -> bool:
        """Return whether all but the exit code is uploaded."""
        try:
            return self.socket.recv(1) == _GO
        except OSError:
            return False

    def wait_in_exit(self) -> None:
        """Have `exit` write the code and wait for the monitor: its functions run in reverse order."""
        library = ctypes.CDLL(None)
        library.fdopen.restype = ctypes.c_void_p
        file = moved_up(open_descriptor(self.record, os.O_WRONLY | os.O_APPEND))
        self.socket.setblocking(True)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", WAIT_SECONDS, 0))
        waiting = ctypes.c_void_p(library.fdopen(moved_up(self.socket.detach()), b"r"))
        code = ctypes.c_void_p(library.fdopen(file, b"a"))
        library.setvbuf(code, None, 2, 0)  # unbuffered
        library["__cxa_atexit"](library.fgetc, waiting, None)
        library.on_exit(library.fputc, code)

    def close(self) -> None:
        """Do without."""
        self.socket.close()


@attrs.define(eq=False)
class ExitDesk:
    """The monitor's side.

    Attributes:
        root: the profile's folder.
        node: this node.
        clock: monotonic clock in seconds.
        sleep: waits for some seconds.
    """

    root: Path
    node: str
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    _listening: socket.socket | None = attrs.field(default=None, init=False)
    _waiting: dict[int, socket.socket] = attrs.field(factory=dict, init=False)

    def open(self) -> None:
        """Listen; a file system without sockets does without."""
        listening = socket.socket(socket.AF_UNIX)
        try:
            with _address(self.root, self.node) as address:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(address)
                listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            return
        listening.setblocking(False)
        self._listening = listening

    def let_go(self) -> set[int]:
        """Let the processes that wait exit, and return those whose codes are in their records."""
        self._accept()
        for connection in self._waiting.values():
            with contextlib.suppress(OSError):
                connection.send(_GO)
        until, left, found = self.clock() + CODE_SECONDS, set(self._waiting), set[int]()
        while left and self.clock() < until:
            for pid in sorted(left):
                if self._has_code(pid):
                    found.add(pid)
                elif not self._is_gone(pid):
                    continue
                left.discard(pid)
            if left:
                self.sleep(POLL_SECONDS)
        return found

    def release(self) -> None:
        """End the wait of the processes that exit."""
        while self._waiting:
            self._waiting.popitem()[1].close()

    def close(self) -> None:
        """Listen no longer."""
        self.release()
        if self._listening is not None:
            self._listening.close()
            with contextlib.suppress(OSError), _address(self.root, self.node) as address:
                os.unlink(address)

    def _accept(self) -> None:
        while self._listening is not None:
            try:
                connection = self._listening.accept()[0]
                connection.setblocking(False)
                sent = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            except OSError:
                return
            pid, user, _ = _CREDENTIALS.unpack(sent)
            if user == os.geteuid():
                self._waiting[pid] = connection
            else:
                connection.close()

    def _has_code(self, pid: int) -> bool:
        for path in (self.root / EXIT_FOLDER).glob(f"*-{self.node}_{pid}_*"):
            with contextlib.suppress(OSError), open_regular(path, flags=os.O_NOFOLLOW) as file:
                return bool(file.read().partition(b"\n")[2])
        return False

    def _is_gone(self, pid: int) -> bool:
        try:
            return self._waiting[pid].recv(1) == b""
        except OSError:
            return False


@contextlib.contextmanager
def _address(root: Path, node: str) -> Iterator[str]:
    """Yield the path of the monitor's socket in a short form: the kernel takes no more than 107 characters."""
    folder = os.open(root / IGNORED_FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/exit-{node}.sock"
    finally:
        os.close(folder)
