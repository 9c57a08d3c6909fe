"""Offset of this node's clock from the true time, as estimated by the kernel's clock discipline: adjtimex(2)."""

from __future__ import annotations

import ctypes

import attrs

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
