"""Phases as the device ran them (`cuda_events`), in a process that uses CUDA.

Before a process initialises CUDA this costs nothing: the tracker is unchanged until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.collector import Collector
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.pytorch.cuda_events import BACKWARD, FORWARD, OPTIMIZER, CudaPhases, Device, torch_device
from sm_profiler.hook.steps import StepTracker

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session

CUDA = "cuda"


class Boundaries:
    """Replaces methods of a tracker with versions that also mark the boundaries of phases on the device.

    The replacements are attributes of the one tracker object, so that they cost nothing in processes without CUDA.
    """

    def __init__(self, tracker: StepTracker, phases: CudaPhases) -> None:
        self._tracker = tracker
        self._phases = phases
        self._optimizer = ""
        self._pieces = False  # the running optimizer has called backward: its own work follows

    def install(self) -> None:
        """Replace the methods."""
        vars(self._tracker).update({name: getattr(self, name) for name in REPLACED})

    def remove(self) -> None:
        """Restore the methods."""
        for name in REPLACED:
            vars(self._tracker).pop(name, None)

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
        """Decide about the device's phases of this step; until a model is on a device, check metered steps for one."""
        tracker = self._session.tracker
        if self._phases is None:
            if not tracker.metering:
                return False
            parameters = (parameter for model in self._models() for parameter in model.parameters())
            device = next((one.device for one in parameters if one.device.type == "cuda"), None)
            if device is None:
                return False
            self.begin(torch_device(self._torch, device.index))
        if self._phases is not None:
            self._phases.step_begins()
        return False

    def begin(self, device: Device) -> None:
        """Record this device's phases from now on."""
        tracker = self._session.tracker
        self._phases = phases = CudaPhases(tracker, device, failed=self._failed)
        self._boundaries = Boundaries(tracker, phases)
        self._boundaries.install()

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
