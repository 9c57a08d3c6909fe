"""Phases as the device ran them, by CUDA events at their boundaries, and torch's memory on the device.

Events are recorded and queried on the training thread only, and never during the capture of a graph.  The host waits for
the device only once, at the start, to align the two clocks.  Before a process initialises CUDA this costs nothing: the
tracker is unchanged until then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

from sm_profiler.formats import recorded
from sm_profiler.formats.event_names import DEVICE_BACKWARD, DEVICE_FORWARD, DEVICE_MEMORY, DEVICE_OPTIMIZER
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.steps import METER_MAX_NS, StepTracker

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session


MAX_EVENTS = 256  # some forty steps; spans of a device that is further behind are dropped
MAX_POLLED = 24  # spans per step, so that catching up does not stall the loop
MIN_NS = 10_000  # allowed per step, even if SHARE of the step is less
SHARE = 0.005
MAX_SPARSE = 64
ANCHOR_MS = 4000.0  # elapsed times are single-precision floats: beyond this their error exceeds half a microsecond


class CudaEvent(Protocol):
    """The part of `torch.cuda.Event` that is used."""

    def record(self, stream: Any) -> None:
        """Store the time at which the stream reaches the event."""

    def query(self) -> bool:
        """Return whether the stream has reached it."""

    def synchronize(self) -> None:
        """Wait until the stream reaches it."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds to `end`; both must have been reached."""


@attrs.frozen
class Device:
    """The part of `torch.cuda` that is used, for one device.

    Attributes:
        index: number of the device.
        event: creates an event with timing.
        stream: returns the current stream.
        capturing: returns whether that stream is being captured into a graph.
        memory: returns allocated, reserved and peak allocated bytes.
    """

    index: int
    event: Callable[[], CudaEvent]
    stream: Callable[[], Any]
    capturing: Callable[[], bool]
    memory: Callable[[], tuple[int, int, int]]


def torch_device(torch: Any, index: int) -> Device:
    """Return a device of torch."""
    cuda = torch.cuda

    def memory() -> tuple[int, int, int]:
        stats = cuda.memory_stats_as_nested_dict(index)  # several times faster than the flat form
        allocated = stats["allocated_bytes"]["all"]
        return allocated["current"], stats["reserved_bytes"]["all"]["current"], allocated["peak"]

    return Device(
        index,
        lambda: cuda.Event(enable_timing=True),
        lambda: cuda.current_stream(index),
        cuda.is_current_stream_capturing,
        memory,
    )


Begun: TypeAlias = tuple[CudaEvent, int]  # and the host's time of its record(), monotonic nanoseconds
PHASES = (DEVICE_FORWARD, DEVICE_BACKWARD, DEVICE_OPTIMIZER)
FORWARD, BACKWARD, OPTIMIZER = range(3)


class CudaPhases:
    """Marks the boundaries of phases on the device's stream, and records the phases that the device has finished.

    A record spans the time from the device's reaching the start of a phase to its reaching the end, so the phases of a
    stream follow each other as on the host, only later.

    Attributes:
        on: phases are marked in this step.
        every: phases are marked in every n-th step.
        dropped: number of spans for which no event was left.
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
        self._pool: list[CudaEvent] = []
        self._room = most_events  # number of events that may still be created
        self._waiting: deque[tuple[int, str, int, Begun, CudaEvent]] = deque()
        self._anchor: CudaEvent | None = None  # reached at _anchor_ns of the host's clock
        self._anchor_ns = 0
        self._spent_ns = 0  # in the open metered step
        self._costs: deque[int] = deque(maxlen=5)
        self._judged: tuple[int, int] | None = None  # step and time of the last judgement
        self.on = False
        self.every = 1
        self.dropped = 0

    # on the training thread, at the boundaries of steps

    def step_begins(self) -> None:
        """Record finished spans, and decide whether to mark the phases of the step that begins."""
        tracker = self._tracker
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

    def poll(self, most: int = MAX_POLLED) -> None:
        """Record at most `most` finished spans, in order, up to the first that is unfinished."""
        waiting = self._waiting
        while waiting and most > 0:
            _, _, _, (first, _), last = waiting[0]
            if not last.query() or not first.query():  # the streams of the two may differ
                return
            most -= 1
            self._take(*waiting.popleft())

    def close(self) -> None:
        """Record all finished spans, without waiting for the rest."""
        if not self._device.capturing():
            self.poll(most=len(self._waiting))

    # at the boundaries of phases, as part of the tracker's own calls

    def begins(self, phase: int, at_ns: int) -> None:
        """Mark the start of a phase."""
        began_ns = self._clock() if self._tracker.metering else 0
        try:
            self.forget(phase)  # its end was never reported
            if self._device.capturing():
                return
            event = self._mark()
            if event is not None:
                self._begun[phase] = event, at_ns
            if began_ns:
                self._spent_ns += min(self._clock() - began_ns, METER_MAX_NS)
        except Exception as error:  # fail open
            self._failed(error)

    def ends(self, phase: int, name: str) -> None:
        """Mark the end of a phase of the current step."""
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
        except Exception as error:  # fail open
            self._failed(error)

    def forget(self, phase: int) -> None:
        """Discard the start of a phase."""
        left, self._begun[phase] = self._begun[phase], None
        if left is not None:
            self._pool.append(left[0])

    # parts

    def _mark(self) -> CudaEvent | None:
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
        """Align the clocks; the host waits for the device's pending work, then for one event alone."""
        event = self._device.event()
        event.record(self._device.stream())
        event.synchronize()
        before = self._clock()
        event.record(self._device.stream())
        event.synchronize()
        self._anchor, self._anchor_ns = event, (before + self._clock()) // 2

    def _take(self, phase: int, name: str, step: int, begun: Begun, last: CudaEvent) -> None:
        anchor = self._anchor
        if anchor is None:
            return
        first, host_ns = begun
        after_ms = anchor.elapsed_time(first)
        start_ns = self._anchor_ns + round(after_ms * 1e6)
        end_ns = start_ns + max(round(first.elapsed_time(last) * 1e6), 0)  # on two streams the end may come first
        # The device's clock drifts from the host's.  It is corrected without waiting by two facts: the device reaches an
        # event after the host has recorded it, and before the host sees it reached.
        shift = max(host_ns - start_ns, 0) or min(self._clock() - end_ns, 0)
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
        """After a metered step, choose the smallest power of two n such that marking every n-th step is within budget."""
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


CUDA = "cuda"


class Boundaries:
    """Replaces methods of a tracker with versions that also mark the boundaries of phases on the device.

    The replacements are attributes of the tracker object, so that they cost nothing in processes without CUDA.
    """

    def __init__(self, tracker: StepTracker, phases: CudaPhases, failed: Callable[[BaseException], None]) -> None:
        self._tracker = tracker
        self._phases = phases
        self._failed = failed
        self._optimizer = ""
        self._pieces = False  # the running optimizer has called backward: its own work follows

    def install(self) -> None:
        """Replace the methods."""
        vars(self._tracker).update({name: getattr(self, name) for name in REPLACED})

    def remove(self) -> None:
        """Restore the methods."""
        for name in REPLACED:
            vars(self._tracker).pop(name, None)

    def begin_step(self, start_ns: int, **options: Any) -> None:
        """Decide whether to mark the phases of the step that begins."""
        StepTracker.begin_step(self._tracker, start_ns, **options)
        try:
            self._phases.step_begins()
        except Exception as error:  # fail open
            self._failed(error)

    def forward_begins(self, key: int, start_ns: int, *, gradients: bool) -> None:
        """Mark the start of a forward; inside an optimizer's step, the optimizer's own work pauses."""
        StepTracker.forward_begins(self._tracker, key, start_ns, gradients=gradients)
        phases = self._phases
        if phases.on:
            if self._tracker.optimizer:
                if self._pieces:
                    phases.ends(OPTIMIZER, self._optimizer)
                else:
                    phases.forget(OPTIMIZER)
            phases.begins(FORWARD, start_ns)

    def forward_ends(self, name: str, end_ns: int) -> None:
        """Mark the end."""
        if self._phases.on:
            self._phases.ends(FORWARD, name)
        StepTracker.forward_ends(self._tracker, name, end_ns)

    def backward_begins(self, start_ns: int) -> None:
        """Mark the start of a backward pass."""
        StepTracker.backward_begins(self._tracker, start_ns)
        if self._phases.on and self._tracker.in_backward == 1:
            self._phases.begins(BACKWARD, start_ns)

    def backward_ends(self, end_ns: int) -> None:
        """Mark the end."""
        phases, tracker = self._phases, self._tracker
        if phases.on and tracker.in_backward == 1:
            phases.ends(BACKWARD, "backward")
            if tracker.optimizer:
                self._pieces = True
                phases.begins(OPTIMIZER, end_ns)
        StepTracker.backward_ends(tracker, end_ns)

    def optimizer_begins(self, key: int, start_ns: int, *more: Any) -> None:
        """Mark the start of an optimizer's step."""
        StepTracker.optimizer_begins(self._tracker, key, start_ns, *more)
        if self._phases.on and self._tracker.optimizer == key:
            self._optimizer, self._pieces = str(more[0]) if more else "optimizer", False
            self._phases.begins(OPTIMIZER, start_ns)

    def optimizer_ends(self, key: int, name: str, end_ns: int) -> None:
        """Mark the end."""
        tracker = self._tracker
        if self._phases.on and tracker.optimizer == key:
            self._phases.ends(OPTIMIZER, name)
        StepTracker.optimizer_ends(tracker, key, name, end_ns)


REPLACED = (
    "begin_step",
    "forward_begins",
    "forward_ends",
    "backward_begins",
    "backward_ends",
    "optimizer_begins",
    "optimizer_ends",
)


class CudaCollector(Collector):
    """Waits until the process uses CUDA and a model is on a device; from then on records the device's phases."""

    name = CUDA

    def __init__(self, session: Session, torch: Any, models: Callable[[], list[Any]]) -> None:
        self._session = session
        self._torch = torch
        self._models = models
        self._phases: CudaPhases | None = None
        self._boundaries: Boundaries | None = None

    def install(self) -> None:
        """Have torch call back when it initialises CUDA."""
        if not self._torch.backends.cuda.is_built():
            return
        try:
            self._torch.cuda._lazy_call(self._initialised)  # polling would cost every process
        except AttributeError:
            self._session.note(CUDA, "unavailable: this torch does not report when it initialises CUDA")

    def _initialised(self) -> None:
        """Join the session, on any thread; the rest happens at the next step."""
        session = self._session
        with session.guarded(CUDA):  # an error here would surface in the script's call of CUDA
            if not session.quiet and not session.has(CUDA):
                session.add(self)

    def step_begins(self, step: int, mode: ModeKeys) -> bool:  # the life cycle's
        """Until a model is on a device, check metered steps for such a model; then the tracker's own steps decide."""
        tracker = self._session.tracker
        if self._phases is None:
            if not tracker.metering:
                return False
            parameters = (
                parameter for model in self._models() for parameter in self._torch.nn.Module.parameters(model)
            )
            device = next((parameter.device for parameter in parameters if parameter.device.type == "cuda"), None)
            if device is None:
                return False
            self.begin(torch_device(self._torch, device.index)).step_begins()
        return True

    def begin(self, device: Device) -> CudaPhases:
        """Record this device's phases from the next step on."""
        tracker = self._session.tracker
        self._phases = phases = CudaPhases(tracker, device, failed=self._failed)
        self._boundaries = Boundaries(tracker, phases, self._failed)
        self._boundaries.install()
        return phases

    def close(self) -> None:
        """Record the phases that the device has finished."""
        if self._phases is not None:
            self._phases.close()

    def forked(self) -> None:
        """Stop: a forked child cannot use its parent's CUDA, and must not even destroy its events."""
        self.stop()
        self._session.discard(self)

    def failed(self) -> None:
        """Stop."""
        self.stop()

    def stop(self) -> None:
        """Record no more phases."""
        if self._boundaries is not None:
            self._boundaries.remove()
        if self._phases is not None:
            self._phases.on = False

    def _failed(self, error: BaseException) -> None:
        self._session.switch_off(self, error)


BEATS = 10  # between two events, unless an allocation was retried


class Allocator(Collector):
    """Reads the counters on the recorder's thread, in a process that has initialised CUDA."""

    name = "allocator"

    def __init__(self, append: Callable[[Span], None], torch: Any, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._append = append
        self._torch = torch
        self._clock = clock
        self._beats = 0
        self._retries = 0
        self._forked = False

    def beat(self) -> None:
        """Record the counters now and then, and whenever an allocation was retried."""
        cuda = self._torch.cuda
        if self._forked or not cuda.is_initialized():
            return
        self._beats += 1
        device = cuda.current_device()
        stats = cuda.memory_stats_as_nested_dict(device)
        retries = stats.get("num_alloc_retries", 0)
        if retries == self._retries and self._beats % BEATS != 1:
            return
        self._retries = retries
        now = self._clock()
        counters = recorded.Allocator(
            device=device,
            retries=retries,
            ooms=stats.get("num_ooms", 0),
            reserved_bytes=_all(stats, "reserved_bytes"),
            allocated_bytes=_all(stats, "allocated_bytes"),
            split_bytes=_all(stats, "inactive_split_bytes"),
        )
        self._append(counters.span("allocator", now, now))

    def forked(self) -> None:
        """Stop: a forked child cannot use its parent's CUDA."""
        self._forked = True


def _all(stats: dict[str, Any], name: str) -> int:
    """Return the current value of a counter over all pools."""
    value = stats.get(name, {}).get("all", {}).get("current", 0)
    return int(value)
