"""Calls that save files or log: their time, their line in the program, and the size of the file.

The functions are wrapped once their module is loaded.  A long call becomes a separate event with its file and the user's
line; short calls are summed up for a second.  Callbacks of frameworks are counted in the same way.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from itertools import islice
from pathlib import Path
from time import perf_counter_ns
from types import CodeType
from typing import TYPE_CHECKING, Any

import attrs

from sm_profiler.formats import recorded
from sm_profiler.formats.recorded import Log, Save, TimedCall
from sm_profiler.hook.caller import definition, user_line
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.guard import pass_on
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.steps import Record

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session


LONG_NS = 1_000_000  # calls that take longer are separate events
MAX_LONG = 200  # between two beats; more are summed up like the short ones


class CallSum:
    """Short calls of one function so far; what times them only adds, and each beat takes the difference."""

    __slots__ = ("count", "seen_count", "seen_ns", "total_ns")

    def __init__(self) -> None:
        self.count = self.seen_count = 0
        self.total_ns = self.seen_ns = 0

    def add(self, length_ns: int) -> None:
        """Count a call."""
        self.count += 1
        self.total_ns += length_ns

    def take(self) -> tuple[int, int]:
        """Return the calls and nanoseconds since the last time."""
        count, total = self.count, self.total_ns
        new = count - self.seen_count, total - self.seen_ns
        self.seen_count, self.seen_ns = count, total
        return new


class Callback(CallSum):
    """One function of the user's that a framework calls.

    Attributes:
        name: under which its calls are recorded.
        at: its file, line and name; empty for a library's.
    """

    __slots__ = ("at", "name")

    def __init__(self, name: str, code: CodeType | None) -> None:
        super().__init__()
        self.name = name
        self.at = definition(code)


class CallbackTimes:
    """Records the calls of callbacks."""

    def __init__(self, append: Callable[[Record], None]) -> None:
        self._append = append
        self._callbacks: list[Callback] = []
        self._long = 0

    def callback(self, name: str, code: CodeType | None) -> Callback:
        """Return a callback whose calls are recorded from now on."""
        self._callbacks.append(callback := Callback(name, code))
        return callback

    def ended(self, callback: Callback, start_ns: int, end_ns: int, step: int) -> None:
        """Record a call."""
        if end_ns - start_ns < LONG_NS or self._long >= MAX_LONG:
            callback.add(end_ns - start_ns)
        else:
            self._long += 1
            self._append(recorded.Callback(calls=1, **callback.at).span(callback.name, start_ns, end_ns, step))

    def beat(self, now_ns: int) -> None:
        """Record the sums of the short calls, on the recorder's thread."""
        self._long = 0
        for callback in list(self._callbacks):
            count, total = callback.take()
            if count:
                short = recorded.Callback(calls=count, **callback.at)
                self._append(short.span(callback.name, now_ns - total, now_ns))

    def forget(self) -> None:
        """Discard the short calls so far."""
        for callback in self._callbacks:
            callback.take()


MANY_MODULES = 50  # imported by a call, which is slow for this reason and only once
MAX_FILES = 1_000  # of a folder, whose sizes are added up


@attrs.frozen
class Target:
    """Functions that are wrapped.

    Attributes:
        module: module that defines them.
        names: their names there; `Class.method` for a method.
        kind: what their calls are recorded as.
        path: position and keyword of the argument with the path, if there is such an argument.
    """

    module: str
    names: tuple[str, ...]
    kind: type[TimedCall]
    path: tuple[int, str] | None = None


TARGETS = (
    Target("torch", ("save",), Save, (1, "f")),
    Target("torch.jit", ("save",), Save, (1, "f")),
    Target("torch.distributed.checkpoint.state_dict_saver", ("save", "async_save"), Save, (-1, "checkpoint_id")),
    Target("safetensors.torch", ("save_file", "save_model"), Save, (1, "filename")),
    Target("safetensors.numpy", ("save_file",), Save, (1, "filename")),
    Target("numpy", ("save", "savez", "savez_compressed"), Save, (0, "file")),
    Target("pickle", ("dump",), Save),
    Target("json", ("dump",), Save),
    Target("os", ("fsync", "fdatasync"), Save),
    Target("joblib", ("dump",), Save, (1, "filename")),
    Target("lightning.pytorch.trainer.trainer", ("Trainer.save_checkpoint",), Save, (1, "filepath")),
    Target("pytorch_lightning.trainer.trainer", ("Trainer.save_checkpoint",), Save, (1, "filepath")),
    Target("transformers.trainer", ("Trainer._save_checkpoint", "Trainer.save_model"), Save),
    Target("transformers.modeling_utils", ("PreTrainedModel.save_pretrained",), Save, (1, "save_directory")),
    Target("accelerate.accelerator", ("Accelerator.save_state", "Accelerator.save_model"), Save),
    Target("keras.src.saving.saving_api", ("save_model", "save_weights"), Save, (1, "filepath")),
    Target("tensorflow.python.checkpoint.checkpoint", ("Checkpoint.save", "Checkpoint.write"), Save, (1, "file_prefix")),
    Target("tensorflow.python.checkpoint.checkpoint_management", ("CheckpointManager.save",), Save),
    Target("builtins", ("print",), Log),
    Target("logging", ("Logger.handle",), Log),
    *(
        Target(
            module,
            tuple(
                f"SummaryWriter.{name}"
                for name in (
                    "add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_figure", "add_video",
                    "add_text", "add_embedding", "add_graph", "add_pr_curve", "add_mesh", "add_hparams", "flush",
                )
            ),
            Log,
        )
        for module in ("torch.utils.tensorboard.writer", "tensorboardX.writer")
    ),
    Target("matplotlib.figure", ("Figure.savefig",), Log),
    Target("wandb.sdk.wandb_run", ("Run.log", "Run.log_artifact", "Run.save"), Log),
    Target(
        "mlflow.tracking.fluent",
        ("log_metric", "log_metrics", "log_param", "log_params", "log_artifact", "log_artifacts", "log_image", "log_figure"),
        Log,
    ),
    Target("comet_ml.experiment", ("BaseExperiment.log_metric", "BaseExperiment.log_metrics"), Log),
)  # fmt: skip


class _Sum(CallSum):
    """Short calls of one function."""

    __slots__ = ("kind", "line", "name")

    def __init__(self, kind: type[TimedCall], name: str) -> None:
        super().__init__()
        self.kind = kind
        self.name = name
        self.line: dict[str, Any] | None = None  # of the user's code; None: to be found at the next call


class TimedCalls(Collector):
    """Records calls on the training thread; a call inside another is part of it."""

    name = "saving and logging"

    def __init__(self, session: Session, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._session = session
        self._clock = clock
        self._inside = False
        self._modules = 0  # that were loaded when the call began
        self._thread = session.adapter.training_thread()
        self._sums: list[_Sum] = []
        self._long = 0  # events since the last beat
        self._paths: list[str] = []  # of the calls inside the call that runs
        self._patches = Patches(functools.partial(session.guard.failed, self.name))

    def install(self, targets: tuple[Target, ...] = TARGETS) -> None:
        """Wrap the functions whose module is loaded, and the others when it is."""
        modules = dict.fromkeys(target.module for target in targets)
        for module in modules:
            own = [target for target in targets if target.module == module]
            self._patches.when_loaded(module, functools.partial(self._wrap_in, module, own))

    def remove(self) -> None:
        """Restore the functions."""
        self._patches.remove()

    def _wrap_in(self, module: str, targets: list[Target]) -> None:
        for target in targets:
            for name in target.names:
                owner: Any = import_module(module)
                *holders, attribute = name.split(".")
                for holder in holders:
                    owner = getattr(owner, holder, None)
                if owner is not None:
                    title = name if module == "builtins" else f"{module.partition('.')[0]}.{name}"
                    self._patches.replace(
                        owner, attribute, functools.partial(self._wrap, kind=target.kind, title=title, path=target.path)
                    )  # fmt: skip

    def _wrap(self, original: Any, *, kind: type[TimedCall], title: str, path: tuple[int, str] | None) -> Any:
        session, tracker, clock, get_ident = self._session, self._session.tracker, self._clock, threading.get_ident
        aside = session.aside
        short = _Sum(kind, title)
        self._sums.append(short)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if session.quiet or tracker.in_fetch or get_ident() != self._thread:
                return original(*args, **kwargs)
            if self._inside:
                if path is not None:
                    self._paths += _path(path, args, kwargs)
                return original(*args, **kwargs)
            self._inside = True
            aside.depth += 1
            self._modules = len(sys.modules)
            start = clock()
            try:
                return original(*args, **kwargs)
            finally:
                length = clock() - start
                self._inside = False
                aside.leave(length)
                if length < LONG_NS:
                    short.add(length)
                    if short.line is None:
                        short.line = user_line()
                else:
                    self._ended(short, start, length, _path(path, args, kwargs))

        timed._torchdynamo_disable = True  # type: ignore[attr-defined]  # breaks a graph without a warning
        return timed

    def _ended(self, short: _Sum, start: int, length: int, paths: list[str]) -> None:
        """Record a long call on its own, unless there are too many of them."""
        try:
            self._long += 1
            if self._long > MAX_LONG:
                short.add(length)
            else:
                self._note(short.kind, short.name, start, start + length, paths + self._paths)
            self._paths.clear()
        except Exception as error:  # fail open
            self._session.switch_off(self, error)

    def _note(self, kind: type[TimedCall], title: str, start: int, end: int, paths: list[str]) -> None:
        session = self._session
        if not session.is_recording:
            return
        imported, step, line = len(sys.modules) - self._modules, session.tracker.train_number, user_line()
        call = kind(calls=1, imported=imported if imported >= MANY_MODULES else None, **line)
        if not paths:
            session.append(call.span(title, start, end, step))
            return

        def measure() -> None:
            size = sum(size_of(path) for path in dict.fromkeys(paths))
            session.append(attrs.evolve(call, path=paths[0], bytes=size).span(title, start, end, step))

        session.later(measure)

    def start(self) -> None:
        """Forget the calls before the first step."""
        for short in self._sums:
            short.take()

    def beat(self) -> None:
        """Record the sums of the short calls, on the recorder's thread."""
        self._thread = self._session.adapter.training_thread()
        self._long = 0
        now = self._clock()
        for short in self._sums:
            count, total = short.take()
            if count:
                calls = short.kind(calls=count, **(short.line or {}))
                short.line = None
                self._session.append(calls.span(short.name, now - total, now))

    def close(self) -> None:
        """Record the last sums."""
        self.beat()

    def forked(self) -> None:
        """Forget the parent's calls."""
        self._inside, self._session.aside.depth = False, 0
        self.start()

    def failed(self) -> None:
        """Restore the functions."""
        self.remove()

    def exit(self) -> None:
        """Restore the functions."""
        self.remove()


def _path(place: tuple[int, str] | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return the path among the arguments of a call, as a list of at most one."""
    if place is None:
        return []
    number, keyword = place
    value = args[number] if 0 <= number < len(args) else kwargs.get(keyword)
    return [str(value)] if isinstance(value, (str, os.PathLike)) else []


def size_of(path: str) -> int:
    """Return the bytes of a file, or of the files directly in a folder; 0 if there is none."""
    try:
        found = Path(path).stat()
        if not stat.S_ISDIR(found.st_mode):
            return found.st_size
        with os.scandir(path) as entries:
            return sum(entry.stat().st_size for entry in islice(entries, MAX_FILES) if entry.is_file())
    except OSError as error:
        pass_on(error)
        return 0
