"""Where a process uses CUDA, its phases are also told as the device ran them (`cuda_events`).

Nothing of this exists in a process before it initialises CUDA: the tracker of steps is the plain one until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.pytorch.cuda_events import BACKWARD, FORWARD, OPTIMIZER, CudaPhases, Device, torch_device
from sm_profiler.hook.steps import StepTracker

if TYPE_CHECKING:
    from sm_profiler.hook.core import Hook

CUDA = "cuda"


class Boundaries:
    """Stands in for a tracker's methods of the same names, and marks the boundaries that they are told of.

    They are put on the one tracker object, so that processes without CUDA do not even ask.
    """

    def __init__(self, tracker: StepTracker, phases: CudaPhases) -> None:
        self._tracker = tracker
        self._phases = phases
        self._optimizer = ""
        self._pieces = False  # the optimizer that runs has had a backward pass inside: what follows is its own work

    def install(self) -> None:
        """Take the methods' places."""
        vars(self._tracker).update({name: getattr(self, name) for name in COVERED})

    def remove(self) -> None:
        """Let the tracker be the plain one."""
        for name in COVERED:
            vars(self._tracker).pop(name, None)

    def forward_begins(self, key: int, start_ns: int, *, gradients: bool) -> None:
        """An outermost module is called; perhaps by an optimizer, whose own work then pauses."""
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
        """It returned, or raised."""
        if self._phases.on:
            self._phases.ends(FORWARD, name)
        StepTracker.forward_ends(self._tracker, name, end_ns)

    def backward_begins(self, start_ns: int) -> None:
        """A backward pass begins."""
        StepTracker.backward_begins(self._tracker, start_ns)
        if self._phases.on and self._tracker.in_backward == 1:
            self._phases.begins(BACKWARD, start_ns)

    def backward_ends(self, end_ns: int) -> None:
        """It returned, or raised."""
        phases, tracker = self._phases, self._tracker
        if phases.on and tracker.in_backward == 1:
            phases.ends(BACKWARD, "backward")
            if tracker.optimizer:
                self._pieces = True
                phases.begins(OPTIMIZER, end_ns)
        StepTracker.backward_ends(tracker, end_ns)

    def optimizer_begins(self, key: int, start_ns: int, *more: Any) -> None:
        """An optimizer's step begins."""
        StepTracker.optimizer_begins(self._tracker, key, start_ns, *more)
        if self._phases.on and self._tracker.optimizer == key:
            self._optimizer, self._pieces = str(more[0]) if more else "optimizer", False
            self._phases.begins(OPTIMIZER, start_ns)

    def optimizer_ends(self, key: int, name: str, end_ns: int) -> None:
        """It returned."""
        tracker = self._tracker
        if self._phases.on and tracker.optimizer == key:
            self._phases.ends(OPTIMIZER, name)
        StepTracker.optimizer_ends(tracker, key, name, end_ns)


COVERED = (
    "forward_begins",
    "forward_ends",
    "backward_begins",
    "backward_ends",
    "optimizer_begins",
    "optimizer_ends",
)


class CudaWatch:
    """Waits for the process to use CUDA, and for a model that lies on a device; then phases are told of."""

    def __init__(self, hook: Hook, torch: Any, models: Callable[[], list[Any]]) -> None:
        self._hook = hook
        self._torch = torch
        self._models = models
        self._phases: CudaPhases | None = None
        self._boundaries: Boundaries | None = None

    def install(self) -> None:
        """Wait for CUDA, at no cost: torch itself calls back when it initialises it."""
        if not self._torch.backends.cuda.is_built():
            return
        try:
            self._torch.cuda._lazy_call(self._initialised)  # noqa: SLF001 - asking at every step would cost every process
        except AttributeError:
            self._hook.notes[CUDA] = "unavailable: this torch does not tell when it initialises CUDA"

    def _initialised(self) -> None:
        """Called by torch, in whichever thread: what follows waits for the next step."""
        hook = self._hook
        with hook.guarded(CUDA):  # an error here would be one of the script's CUDA
            if not hook.quiet and self._look not in hook.on_step:
                hook.at_each_step(self._look)
                hook.on_fork.append(self.stop)  # a forked child cannot use its parent's CUDA
                hook.on_close.append(self._close)
                hook.on_broke.append(self.stop)

    def _look(self, mode: ModeKeys) -> None:
        """At a step's start: which device a model lies on; asked now and then until there is one."""
        if not self._hook.tracker.metering:
            return
        try:
            device = next(
                (one.device for model in self._models() for one in model.parameters() if one.device.type == "cuda"),
                None,
            )
            if device is not None:
                self.begin(torch_device(self._torch, device.index), mode)
        except Exception as error:  # noqa: BLE001 - fail open
            self._failed(error)

    def begin(self, device: Device, mode: ModeKeys) -> None:
        """Tell of this device's phases from the step on that begins now."""
        tracker = self._hook.tracker
        self._phases = phases = CudaPhases(tracker, device, failed=self._failed)
        self._boundaries = Boundaries(tracker, phases)
        self._boundaries.install()
        self._hook.no_longer(self._look)
        self._hook.at_each_step(phases.step_begins)
        phases.step_begins(mode)

    def _failed(self, error: BaseException) -> None:
        self.stop()
        self._hook.guard.failed(CUDA, error)

    def _close(self) -> None:
        if self._phases is not None:
            self._phases.close()

    def stop(self) -> None:
        """Tell no more; events are kept as they are, since a forked child must not even destroy them."""
        if self._boundaries is not None:
            self._boundaries.remove()
        self._hook.no_longer(self._look, self._phases and self._phases.step_begins)
        if self._phases is not None:
            self._phases.on = False
