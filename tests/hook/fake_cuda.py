"""Simulated CUDA devices with clocks of their own."""

import time

from sm_profiler.hook.pytorch.cuda import Device


class FakeGpu:
    """A device whose clock differs from the host's `now_ns` by `offset_ns`, and which reaches events `lag_ns` late."""

    def __init__(self, *, lag_ns: int = 0, offset_ns: int = 77_000_000_000) -> None:
        self.now_ns = 1_000_000_000
        self.lag_ns = lag_ns
        self.offset_ns = offset_ns
        self.capturing = False
        self.made = 0
        self.waits = 0
        self.calls = 0
        self.broken: Exception | None = None
        self.stream = object()

    def clock(self) -> int:
        return self.now_ns

    def device(self, index: int = 0) -> Device:
        return Device(index, self._event, lambda: self.stream, lambda: self.capturing, lambda: (100, 200, 300))

    def _event(self) -> "FakeEvent":
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.reached_ns: int | None = None  # on the device's clock

    def _check(self) -> None:
        self._gpu.calls += 1
        assert not self._gpu.capturing, "an event was touched during a capture"
        if self._gpu.broken:
            raise self._gpu.broken

    def record(self, stream: object) -> None:
        self._check()
        assert stream is self._gpu.stream
        self.reached_ns = self._gpu.now_ns + self._gpu.lag_ns + self._gpu.offset_ns

    def query(self) -> bool:
        self._check()
        return self.reached_ns is not None and self.reached_ns <= self._gpu.now_ns + self._gpu.offset_ns

    def synchronize(self) -> None:
        self._gpu.waits += 1
        self._gpu.now_ns = max(self._gpu.now_ns, self.reached_ns - self._gpu.offset_ns)

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self.query()
        assert end.query()
        return (end.reached_ns - self.reached_ns) / 1e6


class QueueGpu(FakeGpu):
    """A device that works in real time; its clock differs from the host's by five seconds."""

    def __init__(self) -> None:
        super().__init__(offset_ns=5_000_000_000)
        self.free_ns = 0  # when it has finished all work

    def __getattribute__(self, name: str):
        if name == "now_ns":
            return time.perf_counter_ns()
        if name == "lag_ns":
            return max(self.free_ns - time.perf_counter_ns(), 0)
        return super().__getattribute__(name)

    def launch(self, seconds: float) -> None:
        self.free_ns = max(self.free_ns, self.now_ns) + round(seconds * 1e9)

    def wait(self) -> None:
        time.sleep(self.lag_ns / 1e9)


def use(session, gpu: FakeGpu) -> None:
    """Let a session record the phases of a fake device from the running step on."""
    collector = session.adapter.cuda
    session.add(collector)
    collector.begin(gpu.device()).step_begins()
