"""The clocks of a profile: monotonic to wall time, this node's offset from true time, the start of the process."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from sm_profiler.container import INPUT_CONFIG
from sm_profiler.hook.guard import attempt
from sm_profiler.identity import MAX_TEXT, SCRIPT, host_id, identity
from sm_profiler.printable import printable
from sm_profiler.processes import PROC, start_time

JUMP_NS = 100_000_000  # more than slewing moves a clock between two checks


@attrs.define(eq=False)
class Timebase:
    """Offset between the two clocks, measured again only after the wall clock was set.

    Attributes:
        offset_ns: wall clock minus monotonic clock.
        jumps: number of times the wall clock was set.
    """

    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    offset_ns: int = attrs.field(init=False)
    jumps: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.offset_ns = self._measure()

    def to_us(self, monotonic_ns: int) -> int:
        """Convert a monotonic time to microseconds since the epoch."""
        return (monotonic_ns + self.offset_ns) // 1000

    def now_us(self) -> int:
        """Return the current time in microseconds since the epoch."""
        return self.to_us(self.monotonic_ns())

    def has_jumped(self) -> bool:
        """Return whether the wall clock was set since the last check; if so, measure the offset again."""
        offset = self._measure()
        if abs(offset - self.offset_ns) < JUMP_NS:
            return False
        self.offset_ns = offset
        self.jumps += 1
        return True

    def _measure(self) -> int:
        """Return the closest of three readings: the process may be preempted between reading the two clocks."""
        best = (1 << 63, 0)
        for _ in range(3):
            before = self.monotonic_ns()
            wall = self.wall_ns()
            after = self.monotonic_ns()
            best = min(best, (after - before, wall - (before + after) // 2))
        return best[1]


UNSYNCHRONISED = 0x40  # STA_UNSYNC
NANOSECONDS = 0x2000  # STA_NANO: `offset` counts them, not microseconds
ERROR = 5  # TIME_ERROR


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),  # the kernel fills in more fields than are used here
    )


@attrs.frozen
class KernelClock:
    """Offset that the kernel is correcting, and its maximum error, in microseconds."""

    offset_us: float
    error_us: float


def kernel_clock() -> KernelClock | None:
    """Return the state of the kernel's clock, or None if it is not synchronised."""
    try:
        timex = _Timex()
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    return judge(state, timex.status, timex.offset, timex.maxerror)


def judge(state: int, status: int, offset: int, maxerror: int) -> KernelClock | None:
    """Convert the result of adjtimex to microseconds; return None if the clock is not synchronised."""
    if state < 0 or state == ERROR or status & UNSYNCHRONISED:
        return None
    return KernelClock(offset / 1000 if status & NANOSECONDS else float(offset), float(maxerror))


@attrs.frozen
class Birth:
    """State of the process and the machine that the hook found.

    Attributes:
        process_us: start of this process, microseconds since the epoch; None if unknown.
        container_us: start of the container's first process; None outside a training container.
        shared_mounts: mount point → type of the file systems that other machines also use.
        host: identity of the machine, the same in all of its jobs; "" if unknown.
        identity: user, account, job and so on, as far as the scheduler names them (see `sm_profiler.identity`), and the script.
    """

    process_us: int | None = None
    container_us: int | None = None
    shared_mounts: dict[str, str] = attrs.field(factory=dict)
    host: str = ""
    identity: dict[str, str] = attrs.field(factory=dict)


def birth(now_us: int, proc: Path = PROC, input_config: Path = Path(INPUT_CONFIG)) -> Birth:
    """Return the starts of process and container, as far as /proc shows them; never raises.

    Args:
        now_us: the time now on the clock of the profile.
        proc: the process file system.
        input_config: the folder that every training container has, unlike a machine on which only /opt/ml exists.
    """

    def read() -> Birth:
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        has_proc = (proc / "self").exists()

        def started(pid: int) -> int | None:
            ticks = start_time(pid, proc) if has_proc else ""
            return now_us - int(1e6 * (since_boot - int(ticks) / os.sysconf("SC_CLK_TCK"))) if ticks else None

        inside = input_config.is_dir()
        host = host_id(in_container=inside, proc=proc)
        who = identity() | ({SCRIPT: name} if (name := script()) else {})
        return Birth(started(os.getpid()), started(1) if inside else None, shared_mounts(proc), host, who)

    return attempt(read) or Birth()  # the report does without


def script() -> str:
    """Return the path of the script that this process runs, the module of `python -m`, or "" of an interactive one."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else os.path.abspath(file) if file else ""
    return printable(name)[-MAX_TEXT:]


MAX_MOUNTS = 16
SHARED_TYPES = frozenset((
    "afs", "beegfs", "ceph", "cifs", "fhgfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs",
    "smb3", "smbfs", "wekafs",
))  # fmt: skip
REMOTE_FUSE = (
    "s3", "gcs", "goofys", "rclone", "sshfs", "juicefs", "alluxio", "blobfuse", "sagemaker", "ceph", "gluster",
)  # fmt: skip


def shared_mounts(proc: Path = Path("/proc")) -> dict[str, str]:
    """Map each mount point of a shared file system to its type, from mountinfo; empty if it cannot be read."""
    try:
        text = (proc / "self/mountinfo").read_text(errors="replace")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) > 4 and kind and is_shared(kind[0], kind[1] if len(kind) > 1 else ""):  # the mount point
            found[place[4].replace("\\040", " ")] = kind[0]
        if len(found) >= MAX_MOUNTS:
            break
    return found


def is_shared(kind: str, device: str) -> bool:
    """Return whether a file system of this type, on this device, is reached over the network."""
    if kind in SHARED_TYPES:
        return True
    name = f"{kind} {device}".lower()
    return kind.startswith("fuse") and any(word in name for word in REMOTE_FUSE)
