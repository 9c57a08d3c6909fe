"""The parts of a session: collectors, and the adapters of frameworks."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Any, ClassVar

from sm_profiler.config import Profile
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.guard import pass_on
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.settings import rank_from

_FIELDS = 6  # of a `Span`


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

    def thread_ends(self) -> None:
        """React to the end of a thread that trained, on it."""

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


class FrameworkAdapter:
    """Connects one framework with a session, the only argument of its constructor.

    `install` patches the framework so that fetches, forwards, backwards and optimizer steps reach the session's
    tracker, and adds the framework's collectors to the session; `remove` restores the framework.  Everything that
    depends on the framework belongs into its adapter; session, windows and recorder depend on none.

    Several adapters may be installed at once (Keras runs on another framework).  An adapter whose framework reports where a step begins and
    ends, instead of finding it, claims the tracker (`StepTracker.claim`) while it does; what the others see inside are
    phases of its steps.  An adapter that finds steps without any claim calls `Session.lead` before the first.

    Attributes:
        framework: name in file names and metadata, e.g. `pytorch`.
        collectors: names of the collectors that the adapter adds.
    """

    framework: ClassVar[str]
    collectors: ClassVar[frozenset[str]] = frozenset()

    def install(self) -> None:
        """Patch the framework and add its collectors; nothing is recorded before the first step."""
        raise NotImplementedError

    def remove(self) -> None:
        """Restore the framework; must work after an `install` that failed halfway."""
        raise NotImplementedError

    def detailed(self) -> Collector | None:
        """Return the collector of this framework's detailed window, always the same one, or None.

        The session adds it, and takes out that of another framework, when this one leads.
        """
        return None

    def rank(self) -> int | None:
        """Return this process's rank, or None outside a distributed job."""
        return rank_from()

    def training_thread(self) -> int | None:
        """Return the id of the thread that trains."""
        return threading.main_thread().ident

    def is_helper(self) -> bool:
        """Return whether this process only loads data; it has no steps then."""
        return False

    def is_set_up(self) -> bool:
        """Return whether the script has begun to build a training: a model, an optimizer or a process group."""
        return False

    def uses_gpu(self) -> bool | None:
        """Return whether this process has used a GPU so far; None if the framework does not show it."""
        return None

    def step_ending(self, *, later: bool) -> None:
        """React to the end of a step that another adapter marks, before it is recorded, on the training thread.

        Args:
            later: `complete` may still add to the step's record.
        """

    def complete(self, records: list[Span]) -> list[Span]:
        """Return records as they are written, on the recorder's thread: what was not known in their step is added."""
        return records

    def loader_began(self, now_ns: int) -> None:
        """React to the first batch of a new loader iterator."""

    def batches_unused(self) -> None:
        """React to batches that no known model consumed."""


class NoFramework(FrameworkAdapter):
    """The adapter while no framework is imported: the script marks its steps."""

    framework = "python"

    def install(self) -> None:
        """Patch nothing."""

    def remove(self) -> None:
        """Restore nothing."""


# Kinds of what the methods of an adapter return; `install` and `remove`, the session guards itself.
_ANSWERS: dict[str, tuple[type, ...]] = {
    "detailed": (Collector, type(None)),
    "rank": (int, type(None)),
    "training_thread": (int, type(None)),
    "is_helper": (bool,),
    "is_set_up": (bool,),
    "uses_gpu": (bool, type(None)),
    "step_ending": (object,),
    "complete": (list,),
    "loader_began": (object,),
    "batches_unused": (object,),
}


def confined(
    kind: Any, failed: Callable[[FrameworkAdapter, Exception], object], release: Callable[[str], object]
) -> Callable[..., FrameworkAdapter]:
    """Return the adapter of another package as a class in which an error of any method costs this adapter alone.

    From then on, its methods answer as those of `FrameworkAdapter` do, since it may still lead the session.

    Args:
        kind: the class that the package declares.
        failed: switches an adapter off.
        release: finds the steps again that a framework has marked.

    Raises:
        TypeError: it is no class derived from `FrameworkAdapter`, or its framework has no name.
    """
    if not (isinstance(kind, type) and issubclass(kind, FrameworkAdapter)):
        raise TypeError("an adapter is a class derived from sm_profiler.hook.adapter.FrameworkAdapter")
    framework = getattr(kind, "framework", None)
    if not (isinstance(framework, str) and framework):
        raise TypeError("an adapter has the name of its framework in the attribute framework")
    is_off = False

    def confine(name: str, answers: tuple[type, ...]) -> Any:
        original, otherwise = getattr(kind, name), getattr(FrameworkAdapter, name)

        @functools.wraps(original)
        def method(self: FrameworkAdapter, *args: Any, **kwargs: Any) -> Any:
            nonlocal is_off
            if is_off:
                return otherwise(self, *args, **kwargs)
            try:
                found = original(self, *args, **kwargs)
                spans = found if name == "complete" and isinstance(found, list) else ()
                if not isinstance(found, answers) or not all(map(_is_span, spans)):
                    raise TypeError(f"{name} returned {type(found).__name__}")
            except Exception as error:  # fail open
                pass_on(error)
                is_off = True
                failed(self, error)
                return otherwise(self, *args, **kwargs)
            return found

        return method

    def remove(self: FrameworkAdapter) -> None:
        try:
            kind.remove(self)
        finally:
            release(framework)

    methods: dict[str, Any] = {
        name: confine(name, answers)
        for name, answers in _ANSWERS.items()
        if getattr(kind, name) is not getattr(FrameworkAdapter, name)
    }
    return types.new_class(kind.__name__, (kind,), exec_body=lambda names: names.update(methods | {"remove": remove}))


def _is_span(record: object) -> bool:
    return isinstance(record, tuple) and len(record) == _FIELDS
