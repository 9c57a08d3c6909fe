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
from pathlib import Path, PurePosixPath
from time import perf_counter_ns
from types import CodeType
from typing import TYPE_CHECKING, Any

import attrs

from sm_profiler.formats.recorded import AtLine, Callback, Log, Save, TimedCall
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import definition, user_line
from sm_profiler.hook.guard import pass_on
from sm_profiler.hook.patches import Patches

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session


LONG_NS = 1_000_000  # calls that take longer are separate events
MAX_LONG = 200  # between two beats; more are summed up like the short ones


class CallSum:
    """Calls of one function; of short ones what times them only adds, and each beat takes the difference.

    Attributes:
        kind: what its calls are recorded as.
        name: name of the records.
        at: file, line and function that the records have; None if they are to be found at the next short call.
    """

    __slots__ = ("at", "count", "kind", "name", "seen_count", "seen_ns", "total_ns")

    def __init__(self, kind: type[AtLine], name: str, at: dict[str, Any] | None = None) -> None:
        self.kind, self.name, self.at = kind, name, at
        self.count = self.seen_count = 0
        self.total_ns = self.seen_ns = 0

    def add(self, length_ns: int) -> None:
        """Count a short call."""
        self.count += 1
        self.total_ns += length_ns

    def take(self, now_ns: int = 0) -> Span | None:
        """Return a record of the short calls since the last time; None without any."""
        count, length_ns = self.count - self.seen_count, self.total_ns - self.seen_ns
        self.seen_count, self.seen_ns = self.count, self.total_ns
        if not count:
            return None
        return self.kind(calls=count, **(self.at or {})).span(self.name, now_ns - length_ns, now_ns)


class CallbackTimes:
    """Records the calls of callbacks: functions of the user's that a framework calls."""

    def __init__(self, append: Callable[[Span], None]) -> None:
        self._append = append
        self._callbacks: list[CallSum] = []
        self._long = 0

    def callback(self, name: str, code: CodeType | None) -> CallSum:
        """Return a callback whose calls are recorded from now on."""
        self._callbacks.append(callback := CallSum(Callback, name, definition(code)))
        return callback

    def ended(self, callback: CallSum, start_ns: int, end_ns: int, step: int) -> None:
        """Record a call."""
        if end_ns - start_ns < LONG_NS or self._long >= MAX_LONG:
            callback.add(end_ns - start_ns)
        else:
            self._long += 1
            self._append(Callback(calls=1, **(callback.at or {})).span(callback.name, start_ns, end_ns, step))

    def beat(self, now_ns: int) -> None:
        """Record the sums of the short calls, on the recorder's thread."""
        self._long = 0
        for callback in list(self._callbacks):
            if (record := callback.take(now_ns)) is not None:
                self._append(record)

    def forget(self) -> None:
        """Discard the short calls so far."""
        for callback in self._callbacks:
            callback.take()


_PATHS = bytes, type(Path()), PurePosixPath
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


class TimedCalls(Collector):
    """Records calls on the training thread; a call inside another is part of it."""

    name = "saving and logging"

    def __init__(self, session: Session, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._session = session
        self._clock = clock
        self._inside = False
        self._modules = 0  # that were loaded when the call began
        self._thread = session.adapter.training_thread()
        self._sums: list[CallSum] = []
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
        short = CallSum(kind, title)
        self._sums.append(short)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if session.quiet or tracker.in_fetch or get_ident() != self._thread:
                return original(*args, **kwargs)
            if self._inside:
                if path is not None:
                    session.run(self, self._saves_also, path, args, kwargs)
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
                    if short.at is None:
                        session.run(self, self._find_line, short)
                else:
                    session.run(self, self._ended, kind, short, start, length, path, args, kwargs)

        timed._torchdynamo_disable = True  # type: ignore[attr-defined]  # breaks a graph without a warning
        return timed

    def _find_line(self, short: CallSum) -> None:
        """Note where the first of the short calls was made."""
        short.at = user_line()

    def _saves_also(self, path: tuple[int, str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember the path of a call inside the one that runs."""
        self._paths += _path(path, args, kwargs)

    def _ended(  # the parts of a call
        self,
        kind: type[TimedCall],
        short: CallSum,
        start: int,
        length: int,
        path: tuple[int, str] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Record a long call on its own, unless there are too many of them."""
        self._long += 1
        if self._long > MAX_LONG:
            short.add(length)
        else:
            self._note(kind, short.name, start, start + length, _path(path, args, kwargs) + self._paths)
        self._paths.clear()

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
            if (record := short.take(now)) is not None:
                short.at = None
                self._session.append(record)

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
    """Return the path among the arguments of a call, as a list of at most one.

    A class of the script's for paths is left out: the call has run its code, which may count or change something.
    """
    if place is None:
        return []
    number, keyword = place
    value: Any = args[number] if 0 <= number < len(args) else kwargs.get(keyword)
    kind = type(value)
    if kind in _PATHS or issubclass(kind, str):
        return [str.__str__(os.fsdecode(value))]  # of a class derived from text, the text
    return []


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
