"""The hook's overhead budget: measure what the hook costs and writes while it runs, and record less if that is too much."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sm_profiler.hook.own_work import OwnWork
from sm_profiler.hook.rest import ENOUGH
from sm_profiler.hook.scheduling import waited_ns
from sm_profiler.hook.steps import METER_EVERY, StepTracker
from sm_profiler.hook.windows import Window

TIME_SHARE = (
    0.008  # of a step without its waits for a core, for all that the hook does; what its threads delay is not seen
)
LEAST = 8  # part of the budget that observing steps may always take: without any phases there is nothing to report
THRIFT = 3  # times less CPU time than usual the sampler gets where steps of a rest and threads take most of the budget
UNSEEN = 3.0  # times what their own clock sees is what callbacks cost, with cold caches; until steps have been compared
MIN_US = UNSEEN * 30  # a step, which are allowed while windows are open
OVER = 2  # times in a row over the time budget before phases become sparser
OVER_IN_WINDOW = 5  # before a window is shed
UNDER = 20  # times in a row far enough under the time budget before phases become denser again
MAX_EVERY = 1023
BYTES_PER_MINUTE = 2_000_000
MIN_SECONDS = 0.9  # over which bytes are counted
MAX_EVERY_FOR_BYTES = 15  # beyond that the files hold mostly steps, which are always written
SHED_ORDER = ("python", "detailed", "dataloader")


class OverheadController:
    """Decides how sparsely phases are recorded, and which windows are shed.

    Two budgets hold: what the hook costs per step, and the bytes it writes per minute.  Each asks for phases of every
    n-th step, n an odd number, and the larger n wins: what a script does every 8 or 100 steps would otherwise lie in the
    recorded ones.  Over its time budget the hook first sheds open windows, one
    at a time.  Belongs to the recorder's thread.

    Costs are the CPU time of the hook's threads, and that of the training thread by which observed steps exceed those
    of the rests around them.  Without rests, they are those that the clock of the callbacks sees, times a factor.

    Attributes:
        shed: collectors whose windows are over because the hook cost too much.
        others: return the CPU seconds of the hook's other threads.
        share: the part of its usual CPU time that the sampler may take.
    """

    def __init__(  # each is a part that tests replace
        self,
        tracker: StepTracker,
        windows: Mapping[str, Window],
        on_shed: Callable[[str], None],
        *,
        work: OwnWork,
        clock: Callable[[], float] = time.perf_counter,
        own_cpu: Callable[[], float] = time.thread_time,
        waited: Callable[[], int] = waited_ns,
    ) -> None:
        self.shed: set[str] = set()
        self.others: list[Callable[[], float]] = []
        self._tracker = tracker
        self._windows = windows
        self._on_shed = on_shed
        self._work = work
        self._clock = clock
        self._own_cpu = own_cpu
        self._waited = waited  # of the main thread, for a core
        self.reset()

    @property
    def every(self) -> int:
        """Phases are recorded for every n-th step; this is n."""
        return max(self._every_for_time, self._every_for_bytes)

    def reset(self) -> None:
        """Forget all measurements, in a forked child: it writes files of its own."""
        self._last: tuple[float, float, int, int, int, int, int, float] | None = None
        self._bytes_at: tuple[float, int] | None = None
        self._over = self._under = 0
        self._observed_us: float | None = None
        self._estimated = (
            0,
            0.0,
        )  # steps that were observed between rests before any were compared, and what they seemed to cost
        self._unjudged = [0.0] * 4  # steps, what observing them and all else cost, their length; microseconds
        self._every_for_time = self._every_for_bytes = 1
        self.share = 1.0

    def begin(self) -> None:
        """Measure from now on, on the thread of the beats: a fast loop is through its windows before the first one.

        What the training has waited for so far counts, too: recording begins inside the first step.
        """
        others = sum(other() for other in self.others)
        self._last = (self._clock(), self._own_cpu() + others, -1, self._tracker.own_ns, 0, self._waited(), 0, 0.0)

    def beat(self, written: int) -> dict[str, Any] | None:
        """Measure the time since the last call, and record more or less from now on.  Called once a second.

        Args:
            written: bytes written so far.

        Returns:
            Steps and own time since the last call, the arguments of an overhead event; None if no step began.
        """
        now = self._clock()
        self._limit_bytes(now, written)
        measured = self._limit_time(now)
        if self._tracker.every != self.every:  # with longer rests, a step costs more
            self._tracker.every = self.every
            self._tracker.compared.ns.clear()
        return measured

    def end(self) -> dict[str, Any] | None:
        """Return what the hook cost since the last beat, as `beat` does."""
        return self._limit_time(self._clock(), ended=True)

    def _limit_time(self, now: float, *, ended: bool = False) -> dict[str, Any] | None:
        """Compare what the steps since the last time cost with the budget."""
        tracker = self._tracker
        cpu = self._own_cpu() + sum(other() for other in self.others)
        stalled_ns, waited_ns = self._work.stalled_ns, self._waited()
        resting = tracker.rested, tracker.rests_us
        current = (now, cpu, tracker.global_step, tracker.own_ns, stalled_ns, waited_ns, *resting)
        last = self._last
        if last is None:
            self._last = current
        if last is None or (
            current[2] <= last[2] and not (ended and current[4] > last[4])
        ):  # counted with the next step
            return None
        self._last = current
        steps = max(current[2] - last[2], 0)
        rests_us = current[7] - last[7]
        observed = max(steps - (current[6] - last[6]), 0)
        own_us = (current[3] - last[3]) / 1000 * METER_EVERY * UNSEEN
        background_us, each_us = max(current[1] - last[1], 0.0) * 1e6, self.observed_us
        training_us = self._spent(observed, own_us, each_us) + rests_us
        if steps:
            length_us = (current[0] - last[0]) * 1e6 - (current[5] - last[5]) / 1000  # while it had a core, or waited
            cost_us = own_us if each_us is None else each_us * observed
            self._judge(steps, cost_us, background_us + rests_us, max(length_us, 0.0))
        return {
            "steps": steps,
            "training_us": round(training_us, 1),
            "background_us": round(background_us, 1),
            "windows_us": round((current[4] - last[4]) / 1000, 1),
            **({} if each_us is None else {"observed_us": round(each_us, 1)}),
        }

    def _spent(self, observed: int, own_us: float, each_us: float | None) -> float:
        """Return what observed steps cost, and what earlier ones turn out to have cost more or less than they seemed to."""
        earlier, seemed_us = self._estimated
        if self._tracker.every == 1:
            return own_us
        if each_us is None:
            self._estimated = earlier + observed, seemed_us + own_us
            return own_us
        self._estimated = 0, 0.0
        return max(each_us * (observed + earlier) - seemed_us, 0.0)

    @property
    def observed_us(self) -> float | None:
        """Cost of an observed step between two rests, once enough were compared: the mean of the middle half."""
        if self._tracker.every == 1:
            return None
        found = sorted(self._tracker.compared.ns)
        if len(found) >= ENOUGH:
            middle = found[len(found) // 4 : -(len(found) // 4)]
            self._observed_us = max(sum(middle) / len(middle) / 1000, 0.0)
        return self._observed_us

    def _judge(self, steps: int, observed_us: float, fixed_us: float, length_us: float) -> None:
        """Compare with the budget once there are enough steps: of sparse phases, some must be in metered steps.

        What threads and steps of rests cost stays as it is if phases become sparser: the rest of the budget is theirs.
        """
        unjudged = self._unjudged
        for index, more in enumerate((steps, observed_us, fixed_us, length_us)):
            unjudged[index] += more
        if unjudged[0] < METER_EVERY * (self.every if self.observed_us is None else 1):
            return
        count, observed_us, fixed_us, length_us = unjudged
        self._unjudged = [0.0] * 4
        budget_us, window = TIME_SHARE * length_us, self._open_window()
        if window is not None:
            budget_us = max(budget_us, MIN_US * count)
        factor = observed_us / max(budget_us - fixed_us, budget_us / LEAST, 1e-9)
        self.share = min(max(budget_us / max(2 * fixed_us, 1e-9), 1 / THRIFT), 1.0)
        self._over = self._over + 1 if factor > 1 else 0
        self._under = self._under + 1 if factor * self._every_for_time < self._every_for_time // 2 else 0
        if self._over >= (OVER if window is None else OVER_IN_WINDOW):
            self._over = 0
            self._reduce(factor)
        elif self._under >= UNDER:
            self._under = 0
            self._every_for_time //= 2

    def _open_window(self) -> str | None:
        """Return the next window to shed, or None if none is open."""
        for name in SHED_ORDER:
            window = self._windows.get(name)
            if window is not None and window.active and not window.ended and name not in self.shed:
                return name
        return None

    def _reduce(self, factor: float) -> None:
        """Shed an open window, or record phases of so many fewer steps; steps are always recorded."""
        if (window := self._open_window()) is not None:
            self.shed.add(window)
            self._on_shed(window)
            return
        every = self.every
        while factor > 1 and every < MAX_EVERY:
            every, factor = 2 * every + 1, factor * every / (2 * every + 1)
        self._every_for_time = every

    def _limit_bytes(self, now: float, written: int) -> None:
        last = self._bytes_at
        if last is not None and now - last[0] < MIN_SECONDS:
            return
        self._bytes_at = now, written
        if last is None:
            return
        per_minute = (written - last[1]) / max(now - last[0], 0.1) * 60
        if per_minute > BYTES_PER_MINUTE and self.every < MAX_EVERY_FOR_BYTES:
            self._every_for_bytes = 2 * self.every + 1
        elif per_minute < BYTES_PER_MINUTE / 3:
            self._every_for_bytes = max(self._every_for_bytes // 2, 1)
