"""Extensions: what other packages add to sm-profiler by entry points, and the protocol of each kind (docs/extending.md)."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from sm_profiler.settings import PLUGINS

if TYPE_CHECKING:
    from collections.abc import Collection

ADAPTERS, RULES, CAUSES = "sm_profiler.adapters", "sm_profiler.rules", "sm_profiler.causes"
EXPORTERS, FORMATS = "sm_profiler.exporters", "sm_profiler.formats"
GROUPS = (ADAPTERS, RULES, CAUSES, EXPORTERS, FORMATS)
_METADATA = (".dist-info", ".egg-info")
_LARGEST = 1 << 20  # of a file of entry points


class Adapter(Protocol):
    """Connects a framework with the hook: a class whose constructor takes the session.

    Derive it from `sm_profiler.hook.adapter.FrameworkAdapter`, which describes all methods. `install` is called once the
    framework is imported; it patches the framework, so that its steps and phases reach `session.tracker`. Nothing is
    imported before the training imports the framework.
    """

    framework: str

    def install(self) -> None:
        """Patch the framework."""

    def remove(self) -> None:
        """Restore the framework; must work after an `install` that failed halfway."""


class Rule(Protocol):
    """Evaluates a job minute by minute: a class whose constructor takes the rule's parameters, each with a default.

    Parameters arrive as texts if they come from the command line or the API. Attributes, in slots or not, are the rule's
    state: if they are numbers, texts, lists, dicts, sets and numpy arrays, several processes may evaluate it, and `merge`.
    """

    def update(self, window: Any) -> object:
        """Add a window (`sm_profiler.rules.EvaluationWindow`); True if it meets the condition."""

    def merge(self, other: Any) -> None:
        """Add the state of a rule of the same class that saw another part of the job."""

    def result(self) -> dict[str, Any]:
        """Return `RuleTriggered`, `Violations`, `Datapoints` and `Details`; more windows may follow."""


class Judge(Protocol):
    """Finds a cause of lost time in a training's metrics: a function.

    A `sm_profiler.diagnosis.Cause` instead of a function is a row of the table of causes for tables of times:
    its repair is replayed in the ledger.
    """

    def __call__(self, context: Any) -> Any:
        """Return a `sm_profiler.report.Finding`, or None.

        Args:
            context: `sm_profiler.diagnosis.profile.case.Case`: metrics, ledger and rule results of the job.
        """


class Exporter(Protocol):
    """Sends reports to a place: what the function of the entry point returns for the text after `KIND:`."""

    once: bool
    """The same finding is sent once only."""

    def send(self, report: Any) -> str:
        """Send what the place takes of a report; return what was sent, for a line of text.

        Raises:
            sm_profiler.errors.SourceError: it cannot be sent.
        """


class Format(Protocol):
    """Reads times of steps that another tool wrote."""

    def matches(self, where: str) -> bool:
        """Return whether a source, a path or URI, is of this format; called unless it is a table of a built-in format."""

    def read(self, where: str) -> Any:
        """Return a `sm_profiler.diagnosis.Table`.

        Raises:
            sm_profiler.errors.SourceError: it cannot be read.
        """


class Entry:
    """A declared extension.

    Attributes:
        name: of the entry point.
        value: `module:object`.
        package: name and version of the package that declares it.
    """

    __slots__ = ("name", "package", "value")

    def __init__(self, name: str, value: str, package: str) -> None:
        self.name, self.value, self.package = name, value, package


@cache
def declared(group: str) -> tuple[Entry, ...]:
    """Return what the installed packages declare, in the order of their names; nothing is imported."""
    if not PLUGINS.read_or_default() or not _is_mentioned(group):
        return ()
    from importlib.metadata import entry_points  # takes longer than all of `_is_mentioned`

    found = set()
    for point in entry_points(group=group):
        package = getattr(point, "dist", None)
        found.add((point.name, point.value, f"{package.name} {package.version}" if package else "a package"))
    return tuple(Entry(*each) for each in sorted(found))


def load(group: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """Return name → object of the extensions of a group.

    Args:
        group: the group.
        taken: names of sm-profiler's own, in lower case.
    """
    found = {}
    for entry in declared(group):
        if entry.name.lower() in taken or entry.name in found:
            _leave_out(entry, "the name is taken")
        elif (loaded := _loaded(entry)) is not None:
            found[entry.name] = loaded
    return found


def versions(group: str) -> str:
    """Return a text that differs if a group has other extensions; "" without any."""
    return "".join(f" with {entry.name} of {entry.package}" for entry in declared(group))


@cache
def _loaded(entry: Entry) -> Any:
    """Return an extension's object; None if it cannot be imported, which is reported once."""
    from importlib import import_module

    module, _, name = entry.value.partition(":")
    try:
        loaded: Any = import_module(module.strip())
        for part in name.strip().split("."):
            loaded = getattr(loaded, part)
    except (Exception, SystemExit) as error:  # any error: sm-profiler works without it
        _leave_out(entry, f"{type(error).__name__}: {error}")
        return None
    return loaded


@cache
def _leave_out(entry: Entry, reason: str) -> None:
    from sm_profiler.printable import logger_for  # seldom needed in a training

    logger_for("sm_profiler").warning(
        "sm-profiler: the extension %s of %s is left out: %s", entry.name, entry.package, " ".join(reason.split())
    )


def _is_mentioned(group: str) -> bool:
    """Return whether a package may declare something in a group.

    Most have nothing to declare, and reading the files of entry points takes a tenth of importing importlib.metadata.
    """
    wanted = f"[{group}]".encode()
    for folder in sys.path:
        try:
            with os.scandir(folder or ".") as found:
                paths = [entry.path for entry in found if entry.name.endswith(_METADATA)]
        except OSError:
            if folder.endswith((".zip", ".egg")) and os.path.isfile(folder):
                return True  # importlib.metadata looks into archives
            continue
        for path in paths:
            try:
                with open(f"{path}/entry_points.txt", "rb") as file:
                    if wanted in file.read(_LARGEST):
                        return True
            except OSError:
                continue
    return False


def forget() -> None:
    """Look again the next time: packages were installed, or the path has changed."""
    for function in (declared, _loaded, _leave_out):
        function.cache_clear()
