"""Sessions of the hook in this process, with an adapter of no framework."""

import json

from sm_profiler.config import load_profile
from sm_profiler.hook.adapter import Collector, FrameworkAdapter
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.session import Session


class Adapter(FrameworkAdapter):
    framework = "none"
    collectors = frozenset({"detailed"})
    helper = False

    def __init__(self, _session: Session) -> None:
        """Nothing to keep."""

    def install(self) -> None:
        """Nothing to patch."""

    def remove(self) -> None:
        """Nothing to restore."""

    def is_helper(self) -> bool:
        return self.helper


class Recording(Collector):
    """Notes every event of its life, and raises in one of them."""

    name = "detailed"

    def __init__(self, broken: str = "") -> None:
        self.life, self.broken = [], broken

    def _note(self, event: str) -> None:
        self.life.append(event)
        if event == self.broken:
            raise RuntimeError(event)

    def start(self) -> None:
        self._note("start")

    def enter(self, step: int) -> None:
        self._note(f"enter {step}")

    def leave(self, step: int) -> None:
        self._note(f"leave {step}")

    def step_begins(self, step: int, mode: ModeKeys) -> bool:
        self._note(f"step {step} {mode.name}")
        return False

    def step_ends(self) -> None:
        self._note("step ends")

    def forward_ends(self) -> None:
        self._note("forward ends")

    def profile_changed(self, profile) -> None:
        self._note(f"profile of {len(profile.collectors)} windows")

    def beat(self) -> None:
        self._note("beat")

    def forked(self) -> None:
        self._note("forked")

    def failed(self) -> None:
        self._note("failed")

    def close(self) -> None:
        self._note("close")

    def finish(self) -> None:
        self._note("finish")

    def exit(self) -> None:
        self._note("exit")


def profile(folder, **windows):
    ranges = {f"{name}ProfilingConfig": json.dumps(given) for name, given in windows.items()}
    return load_profile(json.dumps({"ProfilingParameters": {"LocalPath": str(folder), **ranges}}))
