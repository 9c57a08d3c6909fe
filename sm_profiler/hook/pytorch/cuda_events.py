"""Phases as the device ran them, by CUDA events at their boundaries, and the memory that torch holds on the device.

Events are recorded and asked for on the training thread only, never while a graph is being captured, and nothing waits
for the device but once, at the start, to learn what its clock says at a known time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import attrs

from sm_profiler.formats.event_names import DEVICE_BACKWARD, DEVICE_FORWARD, DEVICE_MEMORY, DEVICE_OPTIMIZER
from sm_profiler.hook.steps import METER_MAX_NS, StepTracker

MAX_EVENTS = 256  # some forty steps: a device that is further behind is not waited for
MAX_POLLED = 24  # spans a step, so that catching up does not stop the loop
MIN_NS = 10_000  # what this may cost a step, where SHARE of it is less
SHARE = 0.005
MAX_SPARSE = 64
ANCHOR_MS = 4000.0  # elapsed times are single floats: beyond this they no longer tell half a microsecond


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def record(self, stream: Any) -> None:
        """Note the time at which the stream gets here."""

    def query(self) -> bool:
        """Whether it got here."""

    def synchronize(self) -> None:
        """Wait until it gets here."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from here to `end`, both reached."""


@attrs.frozen
class Device:
    """What is used of `torch.cuda` for one device.

    Attributes:
        index: its number.
        event: a new event with timing.
        stream: the stream that work goes to at present.
        capturing: whether that stream is being captured into a graph.
        memory: bytes allocated, bytes reserved, and the most bytes ever allocated.
    """

    index: int
    event: Callable[[], Event]
    stream: Callable[[], Any]
    capturing: Callable[[], bool]
    memory: Callable[[], tuple[int, int, int]]


def torch_device(torch: Any, index: int) -> Device:
    """A device as torch has it."""
    cuda = torch.cuda

    def memory() -> tuple[int, int, int]:
        told = cuda.memory_stats_as_nested_dict(index)  # its flat form takes several times as long
        allocated = told["allocated_bytes"]["all"]
        return allocated["current"], told["reserved_bytes"]["all"]["current"], allocated["peak"]

    return Device(
        index,
        lambda: cuda.Event(enable_timing=True),
        lambda: cuda.current_stream(index),
        cuda.is_current_stream_capturing,
        memory,
    )


Begun: TypeAlias = tuple[Event, int]  # and when the host said so, monotonic nanoseconds
PHASES = (DEVICE_FORWARD, DEVICE_BACKWARD, DEVICE_OPTIMIZER)
FORWARD, BACKWARD, OPTIMIZER = range(3)


class CudaPhases:
    """Marks the boundaries of phases on the device's stream, and turns what came back into records.

    A phase's record runs from where the device reached its beginning to where it reached its end, so the phases of a
    stream follow each other as on the host, only later.
    """

    def __init__(
        self,
        tracker: StepTracker,
        device: Device,
        *,
        failed: Callable[[BaseException], None],
        clock: Callable[[], int] = time.perf_counter_ns,
        most_events: int = MAX_EVENTS,
    ) -> None:
        self._tracker = tracker
        self._device = device
        self._failed = failed
        self._clock = clock
        self._begun: list[Begun | None] = [None, None, None]
        self._pool: list[Event] = []
        self._room = most_events  # events that may still be made
        self._waiting: deque[tuple[int, str, int, Begun, Event]] = deque()
        self._anchor: Event | None = None  # reached at _anchor_ns by the host's clock
        self._anchor_ns = 0
        self._spent_ns = 0  # in the metered step that is open
        self._costs: deque[int] = deque(maxlen=5)
        self._judged: tuple[int, int] | None = None  # step and time of the last look at the cost
        self.on = False  # in this step
        self.every = 1  # recorded for every n-th step
        self.dropped = 0  # spans for which there was no event left

    # on the training thread, at the boundaries of steps

    def step_begins(self) -> None:
        """Take what the device has reached, and decide about the step that begins."""
        tracker = self._tracker
        try:
            self._keep_cheap(self._clock())
            if self._device.capturing():
                self.on = False
                return
            if self._anchor is None:
                self._tie_clocks()
            began_ns = self._clock()
            self.poll()
            self.on = tracker.keep_phases and tracker.global_step % self.every == 0
            if self.on:
                self._read_memory(began_ns)
                if tracker.metering:
                    self._spent_ns = min(self._clock() - began_ns, METER_MAX_NS)
        except Exception as error:  # noqa: BLE001 - fail open
            self._failed(error)

    def poll(self, most: int = MAX_POLLED) -> None:
        """Record the spans whose ends the device has reached, at most so many; the first that it has not ends it."""
        waiting = self._waiting
        while waiting and most > 0:
            _, _, _, (first, _), last = waiting[0]
            if not last.query() or not first.query():  # the streams of the two may differ
                return
            most -= 1
            self._take(*waiting.popleft())

    def close(self) -> None:
        """The training ends: take what is there, without waiting for the rest."""
        try:
            if not self._device.capturing():
                self.poll(most=len(self._waiting))
        except Exception as error:  # noqa: BLE001 - fail open
            self._failed(error)

    # at the boundaries of phases

    def begins(self, phase: int, at_ns: int) -> None:
        """A phase begins on the host."""
        began_ns = self._clock() if self._tracker.metering else 0
        try:
            self.forget(phase)  # where its end was never told
            if self._device.capturing():
                return
            event = self._mark()
            if event is not None:
                self._begun[phase] = event, at_ns
            if began_ns:
                self._spent_ns += min(self._clock() - began_ns, METER_MAX_NS)
        except Exception as error:  # noqa: BLE001 - fail open
            self._failed(error)

    def ends(self, phase: int, name: str) -> None:
        """A phase ends on the host, of the step that the tracker is in."""
        began_ns = self._clock() if self._tracker.metering else 0
        try:
            begun = self._begun[phase]
            if begun is None:
                return
            self._begun[phase] = None
            event = None if self._device.capturing() else self._mark()
            if event is None:
                self._pool.append(begun[0])
                return
            self._waiting.append((phase, name, self._tracker.number, begun, event))
            if began_ns:
                self._spent_ns += min(self._clock() - began_ns, METER_MAX_NS)
        except Exception as error:  # noqa: BLE001 - fail open
            self._failed(error)

    def forget(self, phase: int) -> None:
        """What began is no phase after all."""
        left, self._begun[phase] = self._begun[phase], None
        if left is not None:
            self._pool.append(left[0])

    # parts

    def _mark(self) -> Event | None:
        if self._pool:
            event = self._pool.pop()
        elif self._room > 0:
            self._room -= 1
            event = self._device.event()
        else:
            self.dropped += 1
            return None
        event.record(self._device.stream())
        return event

    def _tie_clocks(self) -> None:
        """The one time that the host waits: first for what the device has to do, then for an event alone."""
        event = self._device.event()
        event.record(self._device.stream())
        event.synchronize()
        before = self._clock()
        event.record(self._device.stream())
        event.synchronize()
        self._anchor, self._anchor_ns = event, (before + self._clock()) // 2

    def _take(self, phase: int, name: str, step: int, begun: Begun, last: Event) -> None:
        anchor = self._anchor
        if anchor is None:
            return
        first, said_ns = begun
        after_ms = anchor.elapsed_time(first)
        start_ns = self._anchor_ns + round(after_ms * 1e6)
        end_ns = start_ns + max(round(first.elapsed_time(last) * 1e6), 0)  # two streams may say that the end came first
        # The device's clock drifts from the host's.  Without waiting it is held by what must be so: the device gets to
        # an event after the host has said it, and before the host sees it.
        shift = max(said_ns - start_ns, 0) or min(self._clock() - end_ns, 0)
        self._anchor_ns += shift
        self._tracker.append((PHASES[phase], name, start_ns + shift, end_ns + shift, step, None))
        if after_ms > ANCHOR_MS:
            self._anchor, self._anchor_ns = last, end_ns + shift
            last = anchor
        self._pool += (first, last)

    def _read_memory(self, at_ns: int) -> None:
        allocated, reserved, peak = self._device.memory()
        args = {
            "device": self._device.index,
            "allocated_bytes": allocated,
            "reserved_bytes": reserved,
            "peak_bytes": peak,
            "every": self.every,
            "dropped": self.dropped,
        }
        self._tracker.append((DEVICE_MEMORY, "memory", at_ns, at_ns, self._tracker.number, args))

    def _keep_cheap(self, now_ns: int) -> None:
        """After a metered step: record as many steps as the budget allows, every n-th, n a power of two."""
        if not self._spent_ns:
            return
        self._costs.append(self._spent_ns)
        self._spent_ns = 0
        step = self._tracker.global_step
        last, self._judged = self._judged, (step, now_ns)
        if last is None or step <= last[0]:
            return
        budget = max(MIN_NS, SHARE * (now_ns - last[1]) / (step - last[0]))
        cost, every = sorted(self._costs)[len(self._costs) // 2], 1
        while cost > budget * every and every < MAX_SPARSE:
            every *= 2
        self.every = every
