"""Record a part of a running script or notebook: `sm_profiler.start()` and `sm_profiler.stop()`."""

from __future__ import annotations

import atexit
import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sm_profiler.errors import ProfilerError
from sm_profiler.printable import printable, say

if TYPE_CHECKING:
    from sm_profiler.config import Profile
    from sm_profiler.debugger import ProfilerConfig
    from sm_profiler.hook import Hook
    from sm_profiler.monitor.start import Registration

NAME = "notebook"
MONITOR_SECONDS = 5.0
_running: list[Recording] = []  # at most one


class Recording:
    """A profile that is being recorded; as a context manager it stops at the end of the block.

    Attributes:
        folder: the profile.
        hook: marks steps and phases.
    """

    def __init__(self, folder: Path, hook: Hook, monitor: Registration | None, *, of_process: bool = False) -> None:
        self.folder = folder
        self.hook = hook
        self._monitor = monitor
        self._of_process = of_process  # the process is profiled anyway, and goes on to be
        self._shell = None if of_process else _shell()
        if self._shell is not None:
            self._shell.events.register("post_run_cell", self._end_of_cell)

    def __repr__(self) -> str:
        state = "recording to" if self in _running else "recorded in"
        return f"<sm_profiler: {state} {printable(self.folder)}>"

    def __enter__(self) -> Recording:  # typing.Self comes with Python 3.11
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self in _running:
            self._stop(exit_code=int(error is not None))

    def stop(self) -> Path:
        """Stop, and return the profile's folder; a recording that has stopped is left as it is."""
        if self in _running:
            self._stop()
        return self.folder

    def _end_of_cell(self, *_result: object) -> None:
        """Record the steps so far: else the pause until the next cell trains would be a part of its first step."""
        session = self.hook.session
        with session.guarded("cells"):
            session.tracker.end_rest()

    def _stop(self, exit_code: int = 0, why: str = "") -> None:
        from sm_profiler.hook.entry import uninstall
        from sm_profiler.monitor.left_profile import mark_end
        from sm_profiler.monitor.run_state import write_state
        from sm_profiler.run_folder import quoted, shown

        _running.remove(self)
        if self._of_process:
            return
        atexit.unregister(self.stop)
        if self._shell is not None:
            self._shell.events.unregister("post_run_cell", self._end_of_cell)
        uninstall()
        if self._monitor is not None:
            self._monitor.leave()
            if self._monitor.monitor is not None:
                with suppress(TimeoutExpired):  # the process, whose work is done, ends
                    self._monitor.monitor.wait(MONITOR_SECONDS)
        else:
            mark_end(self.folder)
        write_state(self.folder, exit_code)
        say(f"{why}next: sm-profiler report {quoted(shown(self.folder))}")


def _shell() -> Any:
    """Return IPython's shell, of a notebook or a terminal; None in a script."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def start(
    folder: str | Path | None = None,
    config: ProfilerConfig | Mapping[str, Any] | str | Path | None = None,
) -> Recording:
    """Record this process from now on, with the windows of `sm-profiler run` unless a configuration is given.

    A cell may be run again: a recording that was not stopped ends, and a folder with a profile gets a new one beside it,
    `runs/1-2`.  In a process that is profiled from its beginning, a line reports that, and nothing else changes.

    Args:
        folder: where to write the profile; by default the configuration's, or else a new folder in `./sm-profiler/`.
        config: a `ProfilerConfig`, its JSON object, or a file that holds it.

    Returns:
        The recording, which also is a context manager.

    Raises:
        ProfilerError: no framework is installed, or the folder cannot be used.
    """
    from sm_profiler.container import rooted
    from sm_profiler.hook import entry
    from sm_profiler.hook.frameworks import frameworks
    from sm_profiler.hook.settings import ConfigText
    from sm_profiler.monitor.run_state import write_state
    from sm_profiler.run_folder import start_monitor

    before = _running[0] if _running else None
    if before is not None and before._of_process:
        before._stop()
        before = None
    if before is None and (found := entry.get_hook(create=False)) is not None:  # a script must not fail because of that
        say(
            f"this process is profiled from its beginning, to {printable(found.session.root)} (SM_PROFILER_AUTO or "
            "'sm-profiler run'): start() and stop() change nothing"
        )
        _running.append(recording := Recording(found.session.root, found, None, of_process=True))
        return recording
    if not any(kind.module in sys.modules or find_spec(kind.module) for kind in frameworks()):
        names = ", ".join(kind.title for kind in frameworks())
        raise ProfilerError(f"start: no training framework is installed here ({names})")
    text, profile, taken = _configuration(folder, config)
    if before is not None:
        before._stop(why="the recording before was not stopped and ends here; ")
    root = rooted(profile.local_path).absolute()
    monitor = start_monitor(profile, f"{NAME}-{time.strftime('%Y%m%d-%H%M%S')}", sample=True)
    write_state(root)
    try:
        hook = entry.start(profile, ConfigText(text), here=True)
    except BaseException:  # Ctrl-C in a notebook, too: the next cell may start again
        entry.uninstall()
        if monitor is not None:
            monitor.leave(by_itself=False)
        write_state(root, 1)
        raise
    recording = Recording(root, hook, monitor)
    _running.append(recording)
    atexit.register(recording.stop)
    say(f"writing the profile to {printable(root)}{taken}")
    return recording


def stop() -> Path:
    """Stop the recording that `start` began, and return the profile's folder.

    Raises:
        ProfilerError: nothing is being recorded.
    """
    if not _running:
        raise ProfilerError("stop: nothing is being recorded; sm_profiler.start() begins")
    return _running[0].stop()


def _configuration(folder: str | Path | None, config: Any) -> tuple[str, Profile, str]:
    """Return the configuration as JSON and as a profile, whose folder exists, and why it has another folder than requested."""
    from sm_profiler.config import load_profile
    from sm_profiler.container import rooted
    from sm_profiler.monitor.place import with_variables
    from sm_profiler.run_folder import FolderTakenError, default_config, profile_folder

    try:
        if config is None:
            asked = Path(folder) if folder is not None else None
            own = profile_folder(NAME) if asked is None else _own_folder(asked)
            text = default_config(own).read_text("utf-8")
            return text, load_profile(text), _why_another(asked, own)
        request = _request(config)
        if folder is not None:
            request = _with_folder(request, Path(folder).absolute())
        text = json.dumps(request)
        profile = load_profile(text)
        for problem in profile.warnings:
            say(printable(problem))
        if not profile.hook_on:
            raise ProfilerError(f"start: this configuration records no framework: {profile.off}")
        profile = with_variables(profile)
        asked = rooted(profile.local_path)
        own = _own_folder(asked)
        if own.name != asked.name:
            text = json.dumps(_with_folder(request, Path(profile.local_path).with_name(own.name)))
            profile = with_variables(load_profile(text))
    except FolderTakenError as error:
        raise FolderTakenError(
            f"start: {error}: name another folder, or none, so that each recording gets its own in ./sm-profiler"
        ) from None
    except OSError as error:
        place = error.filename or folder or "the current folder"
        raise ProfilerError(f"start: {printable(place)}: {error.strerror}") from None
    except ProfilerError:
        raise
    except (TypeError, ValueError) as error:  # a folder that is no path, or a configuration that is no JSON
        raise ProfilerError(f"start: {printable(error)}") from None
    return text, profile, _why_another(asked, own)


def _own_folder(folder: Path) -> Path:
    """Create and return a folder for a profile, or one beside it if it has a profile: a cell is run again and again."""
    from sm_profiler.formats.layout import IGNORED_FOLDER
    from sm_profiler.run_folder import FolderTakenError, new_folder, profile_folder

    try:
        return profile_folder(NAME, folder)
    except FolderTakenError:
        if not (folder / IGNORED_FOLDER).is_dir():  # that is no profile
            raise
    return new_folder(folder.absolute().parent, folder.absolute().name)


def _why_another(asked: Path | None, own: Path) -> str:
    """Return why a profile has another folder than requested, as the end of a sentence."""
    from sm_profiler.hook.settings import rank_from
    from sm_profiler.run_folder import shown

    if asked is None or asked.absolute() == own:
        return ""
    of_ranks = "" if rank_from() is None else "; to profile all ranks together, start them with 'sm-profiler run'"
    return f": {printable(shown(asked))} has one already{of_ranks}"


def _with_folder(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a configuration whose profile goes to a folder."""
    from sm_profiler.container import escaped

    parameters = request.get("ProfilingParameters") or {}
    if not isinstance(parameters, Mapping):
        raise ProfilerError(
            f"start: ProfilingParameters of the configuration is an object, not {type(parameters).__name__}"
        )
    return {**request, "ProfilingParameters": {**parameters, "LocalPath": escaped(str(folder))}}


def _request(config: Any) -> dict[str, Any]:
    """Return a configuration as a JSON object."""
    if hasattr(config, "_to_request_dict") and not isinstance(config, type):
        config = config._to_request_dict()  # the SDK's name for its wire form
    elif isinstance(config, (str, Path)):
        try:
            config = json.loads(Path(config).read_text("utf-8-sig"))
        except ValueError as error:
            raise ProfilerError(f"start: {printable(config)}: {error}") from None
    if not isinstance(config, Mapping):
        raise ProfilerError(f"start: config is a ProfilerConfig, a JSON object or a file, not {type(config).__name__}")
    return dict(config)
