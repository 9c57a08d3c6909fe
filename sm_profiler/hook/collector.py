"""The life cycle of a collector: the events of a session that it may react to."""

from __future__ import annotations

from sm_profiler.config import Profile
from sm_profiler.hook.modes import ModeKeys


class Collector:
    """Records one kind of data.

    A subclass overrides the events it needs, and a session calls no others.  If an event raises, the session switches this
    collector off and calls `failed`; afterwards it calls only `forked`, `finish` and `exit`.

    Attributes:
        name: key in the profile's collectors, in the log and in the metadata of trace files.
        follows_steps: `enter` and `leave` are called at step boundaries.  A collector that is driven by other events
            (batches) evaluates its window itself.
    """

    name = ""
    follows_steps = True

    def start(self) -> None:
        """Recording starts: with the first record of this process, and again in a forked child."""

    def prepare(self) -> None:
        """Do what would delay the start of a window that lies ahead, at the start of a step."""

    def enter(self, step: int) -> None:
        """Start collecting: step `step`, the first of the window, begins."""

    def leave(self, step: int) -> None:
        """Stop collecting: the first step after the window begins, or the session closes (`step` is -1)."""

    def step_begins(self, step: int, mode: ModeKeys) -> bool:  # for subclasses
        """React to the start of a step, on the training thread.

        Args:
            step: the global step.
            mode: its mode.

        Returns:
            Whether steps of this mode may be skipped until `Session.wake` is called.
        """
        return True

    def step_ends(self) -> None:
        """React to the end of a step, on the training thread."""

    def forward_ends(self) -> None:
        """React to the end of an outermost forward, on the training thread."""

    def profile_changed(self, profile: Profile) -> None:
        """Adopt a changed configuration, at the start of a step."""

    def beat(self) -> None:
        """Do periodic work, once a second on the recorder's thread."""

    def forked(self) -> None:
        """Forget the parent's state, in a forked child; leave the parent's files and processes alone."""

    def failed(self) -> None:
        """Stop and discard what is unfinished: this collector or the whole session failed."""

    def close(self) -> None:
        """Record what is unfinished: the session closes, and its files are finished next."""

    def finish(self) -> None:
        """Wait for helper processes and remove temporary files, once the session's files are finished."""

    def exit(self) -> None:
        """End what outlives the session, as the process exits."""


def overrides(collector: Collector, event: str) -> bool:
    """Return whether a collector reacts to an event."""
    return getattr(type(collector), event) is not getattr(Collector, event)
