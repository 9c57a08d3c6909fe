"""Phases by CUDA events, on a simulated device."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from fake_cuda import FakeGpu

from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.pytorch.cuda import ANCHOR_MS, PHASES, Boundaries, CudaCollector, CudaPhases
from sm_profiler.hook.steps import StepTracker
from sm_profiler.report import build_report
from sm_profiler.source import open_source
from tests.support.hook import config, environment
from tests.support.profiles import events

MS = 1_000_000


class Loop:
    """A training loop on a tracker: each phase takes the host a millisecond."""

    def __init__(self, gpu: FakeGpu, **options) -> None:
        self.gpu, self.records, self.failures = gpu, [], []
        self.tracker = StepTracker(self.records.append)
        self.phases = CudaPhases(
            self.tracker, gpu.device(3), failed=self._failed, clock=gpu.clock, **options
        )  # fmt: skip
        self.boundaries = Boundaries(self.tracker, self.phases, self._failed)
        self.boundaries.install()

    def _failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self.boundaries.remove()
        self.phases.on = False

    def _passes(self) -> int:
        self.gpu.now_ns += MS
        return self.gpu.now_ns

    def forward(self) -> None:
        self.tracker.forward_begins(7, self._passes(), gradients=True)
        self.tracker.forward_ends("Net", self._passes())

    def backward(self) -> None:
        self.tracker.backward_begins(self._passes())
        self.tracker.backward_ends(self._passes())

    def optimizer(self) -> None:
        self.tracker.optimizer_begins(9, self._passes())
        self.tracker.optimizer_ends(9, "SGD", self._passes())

    def step(self) -> None:
        self.forward()
        self.backward()
        self.optimizer()

    def of(self, *phases: str) -> list:
        return [record for record in self.records if record[0] in phases]


def test_device_phases_span_the_devices_own_times():
    loop = Loop(FakeGpu())
    loop.step()
    loop.gpu.lag_ns = 3 * MS
    loop.step()
    loop.step()
    loop.gpu.now_ns += 10 * MS
    loop.phases.close()
    found = loop.of(*PHASES)
    assert [(phase, name, step) for phase, name, _, _, step, _ in found] == [
        (phase, name, step) for step in range(3) for phase, name in zip(PHASES, ("Net", "backward", "SGD"), strict=True)
    ]
    host = loop.of("Forward", "Backward(post-forward)", "Optimizer")
    late = [record[2] - same[2] for record, same in zip(found, host, strict=True)]
    assert late[3:] == [pytest.approx(3 * MS, abs=2)] * 6
    assert [record[3] - record[2] for record in found[1:]] == [
        pytest.approx(MS, abs=2)
    ] * 8  # clocks are tied in the first


def test_the_host_waits_for_the_device_only_once():
    loop = Loop(FakeGpu(lag_ns=MS))
    loop.step()
    assert loop.gpu.waits == 2  # until the device had nothing to do, and for the event that ties the clocks
    for _ in range(50):
        loop.step()
    assert loop.gpu.waits == 2


def test_a_phase_is_recorded_once_the_device_has_finished_it():
    loop = Loop(FakeGpu())
    loop.step()
    loop.gpu.lag_ns = 20 * MS
    loop.step()
    loop.step()
    recorded = [record[4] for record in loop.of(*PHASES)]
    assert recorded == [0, 0, 0]
    loop.gpu.now_ns += 20 * MS
    loop.step()
    assert [record[4] for record in loop.of(*PHASES)] == [0] * 3 + [1] * 3 + [2] * 3


def test_events_are_reused():
    loop = Loop(FakeGpu(lag_ns=MS // 2))
    for _ in range(100):
        loop.step()
    assert loop.gpu.made <= 13
    assert len(loop.of(*PHASES)) == 3 * 99
    assert loop.phases.dropped == 0


def test_a_device_that_is_far_behind_drops_spans_and_takes_no_memory():
    loop = Loop(FakeGpu(lag_ns=1000 * MS), most_events=13)
    for _ in range(20):
        loop.step()
    assert loop.gpu.made == 14  # and the anchor
    assert loop.of(*PHASES) == []
    assert loop.phases.dropped > 0
    loop.gpu.now_ns += 1000 * MS
    loop.gpu.lag_ns = 0
    dropped = loop.phases.dropped
    for _ in range(5):
        loop.step()
    assert loop.phases.dropped == dropped
    assert {record[4] for record in loop.of(*PHASES)} == {0, 1, 20, 21, 22, 23}
    assert loop.of("sm_profiler/cuda_memory")[-1][5]["dropped"] == dropped


def test_nothing_is_recorded_or_queried_during_a_capture():
    loop = Loop(FakeGpu())
    loop.step()
    loop.forward()  # of step 1; its end and its beginning are there
    loop.tracker.backward_begins(loop.gpu.now_ns)
    loop.gpu.capturing = True  # the fake fails when an event is touched now
    loop.tracker.backward_ends(loop.gpu.now_ns)
    loop.optimizer()
    loop.step()  # step 2, whole
    loop.phases.close()
    loop.gpu.capturing = False
    loop.step()
    loop.step()
    assert loop.failures == []
    found = [(phase, step) for phase, _, _, _, step, _ in loop.of(*PHASES)]
    assert found == [(phase, 0) for phase in PHASES] + [(PHASES[0], 1)] + [(phase, 3) for phase in PHASES]
    assert len(loop.of("Forward")) == 5  # the host's are always there


def test_a_capture_at_the_start_delays_recording():
    loop = Loop(FakeGpu())
    loop.gpu.capturing = True
    loop.step()
    assert (loop.gpu.made, loop.gpu.calls) == (0, 0)
    loop.gpu.capturing = False
    loop.step()
    loop.step()
    assert {record[4] for record in loop.of(*PHASES)} == {1}


def test_a_failure_ends_device_phases_but_not_host_phases():
    loop = Loop(FakeGpu())
    loop.step()
    loop.gpu.broken = RuntimeError("CUDA error: an illegal memory access was encountered")
    for _ in range(4):
        loop.step()
    assert len(loop.failures) == 1
    assert [len(loop.of(phase)) for phase in ("Forward", "Backward(post-forward)", "Optimizer")] == [5, 5, 5]
    assert not any(name in vars(loop.tracker) for name in ("forward_begins", "optimizer_ends"))


def test_only_steps_whose_phases_are_recorded_are_marked():
    loop = Loop(FakeGpu())
    loop.tracker.every = 4
    for _ in range(9):
        loop.step()
    loop.phases.close()
    assert {record[4] for record in loop.of(*PHASES)} == {0, 4, 8}
    assert [record[4] for record in loop.of("sm_profiler/cuda_memory")] == [0, 4, 8]


def test_expensive_work_is_sampled():
    gpu = FakeGpu()
    loop = Loop(gpu)

    def stream() -> object:  # marking takes the host 20 µs: 120 a step of 6 ms, of which 30 are allowed
        gpu.now_ns += 20_000
        return object.__getattribute__(gpu, "stream")

    object.__setattr__(loop.phases._device, "stream", stream)
    for _ in range(100):
        loop.step()
    assert loop.phases.every == 4
    numbers = [record[4] for record in loop.of("sm_profiler/cuda_memory")]
    assert numbers[-3:] == [88, 92, 96]
    assert loop.of("sm_profiler/cuda_memory")[-1][5]["every"] == 4


def test_a_drifting_device_clock_is_corrected_without_waiting():
    loop = Loop(FakeGpu())
    for _ in range(200):
        loop.gpu.offset_ns += 50_000  # the device's clock gains 50 µs a step
        loop.step()
        loop.gpu.now_ns += 100_000
    for record, host in zip(loop.of(PHASES[0]), loop.of("Forward"), strict=False):
        assert -1000 <= record[2] - host[2] <= 7 * MS  # not before the host recorded it, nor after the host saw it


def test_the_anchor_moves_so_that_single_precision_suffices():
    loop = Loop(FakeGpu())
    loop.step()
    first = loop.phases._anchor
    loop.gpu.now_ns += int(ANCHOR_MS) * MS + MS
    loop.step()
    loop.step()
    assert loop.phases._anchor is not first
    loop.step()
    late = [record[2] - host[2] for record, host in zip(loop.of(PHASES[0]), loop.of("Forward"), strict=False)]
    assert late == [pytest.approx(0, abs=5)] * len(late)


def test_an_optimizer_that_calls_the_model_counts_its_own_work_only():
    loop = Loop(FakeGpu())
    for _ in range(2):  # as LBFGS does, and Lightning with any optimizer
        loop.tracker.optimizer_begins(9, loop.gpu.now_ns)
        for _ in range(2):
            loop.forward()
            loop.backward()
        loop._passes()
        loop.tracker.optimizer_ends(9, "LBFGS", loop.gpu.now_ns)
    loop.phases.close()
    counts = {phase: len(loop.of(phase)) for phase in PHASES}
    assert counts == {PHASES[0]: 4, PHASES[1]: 4, PHASES[2]: 4}
    spans = sorted(record[2:4] for record in loop.of(*PHASES)[1:])
    assert all(later[0] >= earlier[1] - 2 for earlier, later in itertools.pairwise(spans))  # none in another


class FakeTorch:
    """A torch whose CUDA the test initialises."""

    class cuda:  # the name it has in torch
        queued: ClassVar[list] = []

        @classmethod
        def _lazy_call(cls, call) -> None:
            cls.queued.append(call)

    class backends:
        class cuda:
            @staticmethod
            def is_built() -> bool:
                return True


def test_cuda_costs_nothing_before_it_is_initialised_nor_after_it_stops(session):
    tracker, gpu = session.tracker, FakeGpu()
    collector = CudaCollector(session, FakeTorch, list)
    session.adapter.cuda = collector
    collector.install()
    assert not session.has("cuda")
    assert not any(callable(value) and hasattr(StepTracker, name) for name, value in vars(tracker).items())
    FakeTorch.cuda.queued.pop()()
    assert session.has("cuda")
    tracker.metering = True
    assert not collector.step_begins(0, ModeKeys.TRAIN)  # no model on a device yet, so every step counts
    collector.begin(gpu.device())
    assert collector.step_begins(1, ModeKeys.TRAIN)  # the tracker itself calls it from here on
    assert "forward_begins" in vars(tracker)
    collector.stop()
    session.discard(collector)
    assert not session.has("cuda")
    assert "forward_begins" not in vars(tracker)
    assert session.guard.failures == {}


def test_a_torch_without_cuda_adds_no_collector(session):
    class Without:
        class backends:  # the name it has in torch
            class cuda:
                @staticmethod
                def is_built() -> bool:
                    return False

    CudaCollector(session, Without, list).install()
    assert not session.has("cuda")
    assert session.notes == {}


PROGRAM = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from fake_cuda import FakeGpu, use
import torch
from sm_profiler.hook import get_hook
class Gpu(FakeGpu):  # a device whose clock is the host's own, 5 s beside it
    now_ns = property(lambda self: time.perf_counter_ns(), lambda self, value: None)
gpu = Gpu(offset_ns=5_000_000_000)
session = get_hook().session
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    if step == 2:
        use(session, gpu)
    if step == 8 and sys.argv[2] == "breaks":
        gpu.broken = RuntimeError("CUDA error")
    optimizer.zero_grad()
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
print(json.dumps(session.guard.failures))
"""


@pytest.mark.first(1)
@pytest.mark.parametrize(("what", "last"), [("works", 11), ("breaks", 7)])
def test_a_training_on_a_simulated_device(tmp_path, what, last):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), what],
        capture_output=True, text=True, check=False, timeout=100, env=environment(SM_PROFILER_CONFIG=config(tmp_path)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    failures = json.loads(done.stdout)
    assert set(failures) == ({"cuda"} if what == "breaks" else set())
    assert done.stderr.count("sm-profiler") == len(failures)
    rows = events(tmp_path)
    for phase, name in zip(PHASES, ("Sequential", "backward", "SGD"), strict=True):
        found = [(row["name"], int(row["args"]["step_num"])) for row in rows if row["phase"] == phase]
        assert set(found) <= {(name, step) for step in range(2, last + 1)}
        assert len(found) == len(set(found)) >= last - 4
    assert sum(row["phase"] == "Forward" for row in rows) == 12
    memory = [row for row in rows if row["phase"] == "sm_profiler/cuda_memory"]
    assert memory[0]["args"]["allocated_bytes"] == 100


QUEUED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from fake_cuda import QueueGpu, use
import torch
from sm_profiler.hook import get_hook
gpu = QueueGpu()
class Work(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        gpu.launch(0.006)
        return x * 2
    @staticmethod
    def backward(context, gradient):
        gpu.launch(0.010)
        return gradient * 2
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x):
        return Work.apply(self.layer(x))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.DataLoader(torch.zeros(110, 8), batch_size=1)
for step, x in enumerate(data):
    if step == 2:
        get_hook() and use(get_hook().session, gpu)
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    gpu.wait()  # what .item() does
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.first(1)
@pytest.mark.parametrize(("pause", "kind"), [(0.0, "BALANCED"), (0.02, "SYNC_BOUND")])
def test_the_verdict_uses_the_devices_times(tmp_path, pause, kind):
    done = subprocess.run(
        [sys.executable, "-c", QUEUED, str(Path(__file__).parent), str(pause)],
        capture_output=True, text=True, check=False, timeout=100, env=environment(SM_PROFILER_CONFIG=config(tmp_path)),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    report = build_report(open_source(tmp_path, progress=False, cache=False))
    (rank,) = report.metrics.ranks
    assert rank.on_device
    assert report.verdict.main.kind.value == kind
    known = rank.iterations.known
    assert np.median(rank.iterations.of("forward")[known]) == pytest.approx(0.006, rel=0.25)
    assert np.median(rank.iterations.of("backward")[known]) == pytest.approx(0.010, rel=0.25)
    assert np.median(rank.iterations.of("outside")[known]) >= pause
