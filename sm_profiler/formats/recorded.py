"""Single occurrences that the hook records: one class for each phase, whose fields are the arguments of its events.

The hook writes these arguments (`args`) and reports read them (`metrics.record_fold`).  A field whose default is None is
written only if it is known.  A reader gets the default of what a file lacks, as files of older versions do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import attrs

from sm_profiler.formats import event_names

if TYPE_CHECKING:
    from sm_profiler.formats.trace_writer import Span

Frame: TypeAlias = tuple[str, int, str]  # file, line, function

_names: dict[type[Fields], tuple[str, ...]] = {}
_PLAIN = {str, int, float, bool, dict}


@attrs.frozen(kw_only=True)
class Fields:
    """A JSON object of known fields."""

    def args(self) -> dict[str, Any]:
        return {
            name: value if type(value) in _PLAIN else _plain(value)
            for name in names(type(self))
            if (value := getattr(self, name)) is not None
        }


def names(kind: type[Fields]) -> tuple[str, ...]:
    if kind not in _names:
        _names[kind] = tuple(field.name for field in attrs.fields(kind))
    return _names[kind]


def _plain(value: Any) -> Any:
    if isinstance(value, Fields):
        return value.args()
    return [_plain(element) for element in value] if isinstance(value, tuple) else value


@attrs.frozen(kw_only=True)
class Recorded(Fields):
    """Arguments of an event; each subclass is that of one phase.

    Attributes:
        calls: how many short calls the event sums up; None if it is a single occurrence.
    """

    phase: ClassVar[str]
    calls: int | None = None

    def span(self, name: str, start_ns: int, end_ns: int, step: int = -1) -> Span:
        """Return the event as the hook queues it, its times in monotonic nanoseconds."""
        return self.phase, name, start_ns, end_ns, step, self.args()


@attrs.frozen(kw_only=True)
class AtLine(Recorded):
    """An occurrence with the line of the script that caused it, if it is known."""

    file: str | None = None
    line: int | None = None
    function: str | None = None


@attrs.frozen(kw_only=True)
class Profiling(Recorded):
    """Time that only the profiler caused; the event's name is what it did.

    Attributes:
        kind: `stall` if the training waited for it (a window started, stopped, was prepared), `background` if another thread
            competed for the interpreter (an export) or another process for a core (a conversion), or `window` from the first
            step of a window to the step after it, whose steps ran slower.
        cpu_s: CPU seconds of the other process, which takes nothing from the training while it waits for a core.
        window: the window's collector.
        steps: number of its steps.
        slower: how many times as long as usual they took; None, which is written for a window, if that is unknown.
    """

    phase: ClassVar[str] = event_names.PROFILING
    kind: str = ""
    window: str | None = None
    steps: int | None = None
    slower: float | None = None
    cpu_s: float | None = None

    def args(self) -> dict[str, Any]:
        found = super().args()
        return found if self.window is None else found | {"slower": self.slower}


@attrs.frozen(kw_only=True)
class TimedCall(AtLine):
    """A call of a function that saves or logs, whose name the event has.

    Attributes:
        imported: number of modules that the call imported, if they are many.
        path: the file or folder that it wrote.
        bytes: size of that.
    """

    imported: int | None = None
    path: str | None = None
    bytes: int | None = None


@attrs.frozen(kw_only=True)
class Save(TimedCall):
    """A checkpoint or another file that the script writes."""

    phase: ClassVar[str] = event_names.SAVE


@attrs.frozen(kw_only=True)
class Log(TimedCall):
    """A call of a logger or experiment tracker."""

    phase: ClassVar[str] = event_names.LOG


@attrs.frozen(kw_only=True)
class Callback(AtLine):
    """A method of a training callback, and the line that defines it; the event's name is `Class.method`."""

    phase: ClassVar[str] = event_names.CALLBACK


@attrs.frozen(kw_only=True)
class Compile(AtLine):
    """A compilation or graph break of torch.compile, tf.function or jax.jit; the event's name is the function's.

    Attributes:
        compiler: `tf.function`, `XLA` or `jax.jit`; torch.compile if unknown.
        again: the function was compiled before; None for a graph break.
        reason: what differed from before, or broke the graph.
    """

    phase: ClassVar[str] = event_names.COMPILE
    compiler: str | None = None
    again: bool | None = None
    reason: str | None = None


@attrs.frozen(kw_only=True)
class Allocator(Recorded):
    """Counters of the device's caching allocator."""

    phase: ClassVar[str] = event_names.ALLOCATOR
    device: int = 0
    retries: int = 0
    ooms: int = 0
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    split_bytes: int = 0


@attrs.frozen(kw_only=True)
class Operators(Recorded):
    """Operators of a training step: those of the autograd graph, or those that TensorFlow launched.

    Attributes:
        operators: their number: forward, backward and optimizer.
        fixed_us: microseconds that an operator takes at least on this machine.
        step_us: microseconds of the steps after it, without waiting for a core.
        call_us: of operations of a JAX gradient function that is not compiled: microseconds of its call.
        eager: no part of the step runs in a graph.
        readers: the most operators of a kind that read the same result, such as one for each sample of a batch.
    """

    phase: ClassVar[str] = event_names.OPERATORS
    operators: int = 0
    fixed_us: float = 0.0
    step_us: float | None = None
    call_us: float | None = None
    eager: bool | None = None
    readers: int | None = None


@attrs.frozen(kw_only=True)
class CompiledStack(Fields):
    """Operations of compiled functions that were traced in the same calls.

    Attributes:
        frames: file, line and function of the script's calls, the outermost first.
        operation: what they compute: `dot_general`.
        us: microseconds of all threads.
        updates: they are the optimizer's.
        source: text of the innermost line.
    """

    frames: tuple[Frame, ...] = ()
    operation: str = ""
    us: float = 0.0
    updates: bool | None = None
    source: str | None = None


@attrs.frozen(kw_only=True)
class CompiledWork(Recorded):
    """The work of the compiled functions that compute gradients, by the operations of a detailed window.

    Attributes:
        optimizer: the optimizer's share of the time.
        stacks: the calls in which it was traced, the most expensive first; TensorFlow keeps none.
    """

    phase: ClassVar[str] = event_names.COMPILED_WORK
    optimizer: float = 0.0
    stacks: tuple[CompiledStack, ...] = ()


@attrs.frozen(kw_only=True)
class Objects(Recorded):
    """Growth of Python objects and tensors since the first count.

    Attributes:
        types: type → how many more there are.
        tensor_bytes: bytes that tensors gained.
        tensors_in_graphs: how many more tensors keep a graph.
        container: what the container that grew most is called and holds.
        container_bytes: size of that container without its elements.
        new_elements_bytes: what the elements hold that it gained, by a sample of them.
        lines: the lines that add to it.
    """

    phase: ClassVar[str] = event_names.OBJECTS
    types: dict[str, int] = attrs.field(factory=dict)
    tensor_bytes: int = 0
    tensors_in_graphs: int = 0
    container: str | None = None
    container_bytes: int = 0
    new_elements_bytes: int = 0
    lines: tuple[Frame, ...] | None = None


@attrs.frozen(kw_only=True)
class Threads(Recorded):
    """Threads of the process and its libraries in the last seconds.

    Attributes:
        threads: number of threads.
        library_threads: threads that torch computes with.
        cores: cores that the process may use.
        waited_ns: how long the main thread waited for a core.
        switches: context switches of all threads.
    """

    phase: ClassVar[str] = event_names.THREADS
    threads: int = 0
    library_threads: int = 0
    cores: float = 0.0
    waited_ns: int = 0
    switches: int = 0


@attrs.frozen(kw_only=True)
class ThreadStack(Fields):
    """The stack of a thread; frames from the innermost outwards."""

    name: str = ""
    training: bool = False
    frames: tuple[Frame, ...] = ()


@attrs.frozen(kw_only=True)
class ChildProcess(Fields):
    """A child process, such as a loader's worker, as the kernel reports it."""

    pid: int = 0
    name: str = ""
    state: str = ""
    waits_in: str = ""


@attrs.frozen(kw_only=True)
class DeadThread(Fields):
    """A thread that ended with an exception.

    Attributes:
        error: the exception's type and the first line of its message.
        where: the innermost line of the script that the exception passed, as `train.py:12`; "" if there is none.
        ago: seconds since then.
    """

    name: str = ""
    error: str = ""
    where: str = ""
    ago: float = 0.0


@attrs.frozen(kw_only=True)
class Hang(Recorded):
    """The steps stopped, went on, or the process exited without another.

    Attributes:
        state: `hanging`, `resumed` or `ended`.
        waited: seconds since the last progress.
        longest: seconds of the longest stop before.
        cpu: cores that the process used meanwhile.
        same: its training thread was at one place all the time.
        error: the exception with which the process exits.
        threads: stacks of all threads, that of the training first.
        dead: threads that ended with an exception, the latest first.
        steps: training steps that were complete.
    """

    phase: ClassVar[str] = event_names.HANG
    state: str = ""
    waited: float = 0.0
    longest: float = 0.0
    cpu: float = 0.0
    same: bool = False
    error: str | None = None
    threads: tuple[ThreadStack, ...] | None = None
    children: tuple[ChildProcess, ...] | None = None
    dead: tuple[DeadThread, ...] | None = None
    steps: int | None = None


@attrs.frozen(kw_only=True)
class ThreadEnd(Recorded):
    """A thread of the script ended with an exception; the event's name is the thread's, and the arguments are those of `DeadThread`."""

    phase: ClassVar[str] = event_names.THREAD_END
    error: str = ""
    where: str = ""


@attrs.frozen(kw_only=True)
class Epoch(Recorded):
    """An epoch of the training, evaluation included."""

    phase: ClassVar[str] = event_names.EPOCH
    epoch: int = 0


@attrs.frozen(kw_only=True)
class Input(AtLine):
    """The input of a Keras loop, whose kind the event's name has; file, line and function are of a PyDataset's __getitem__.

    Attributes:
        kind: PyDataset, tf.data, DataLoader, arrays, generator …
        backend: of Keras.
        num_workers: workers of a PyDataset.
        pin_memory, worker_id: of every input in the format of the SageMaker service: none.
        processes: its workers are processes.
    """

    phase: ClassVar[str] = event_names.INPUT
    kind: str = ""
    backend: str = ""
    num_workers: int | None = None
    pin_memory: bool | None = None
    worker_id: int | None = None
    processes: bool | None = None


@attrs.frozen(kw_only=True)
class Stage(Fields):
    """A stage of a tf.data pipeline, with the line of the script's function in it.

    Attributes:
        stage: `map(decode)`, or `batch`.
        us: microseconds for an element of the stage.
        batch_us: for a batch of the loop, with its parallelism.
        parallelism: threads that run it.
        parallel: that number can be raised.
    """

    stage: str = ""
    us: float | None = None
    batch_us: float | None = None
    parallelism: float | None = None
    parallel: bool | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None


@attrs.frozen(kw_only=True)
class DataStages(Recorded):
    """The stages of a tf.data pipeline, as TensorFlow's autotuning models them.

    Attributes:
        forgotten: the stage inside which TensorFlow forgot what ran, if it is the only one, without times.
        batches: batches that the loop got.
        partial: stages are missing, since TensorFlow forgets what ran inside an interleave or flat_map once it has ended.
        prefetch: a stage prefetches.
        cache: a stage caches.
        stages: the slowest first.
    """

    phase: ClassVar[str] = event_names.DATA_STAGES
    forgotten: Stage | None = None
    batches: int = 0
    partial: bool = False
    prefetch: bool = False
    cache: bool = False
    stages: tuple[Stage, ...] = ()


@attrs.frozen(kw_only=True)
class LoaderWorkers(Recorded):
    """The worker processes of a PyTorch loader, which start or stop; the event's name is one of the two."""

    phase: ClassVar[str] = event_names.LOADER_WORKERS
    num_workers: int = 0


@attrs.frozen(kw_only=True)
class EvalMode(Recorded):
    """A model is switched from training to eval() mode while the loop runs; the event's name is the model's class."""

    phase: ClassVar[str] = event_names.EVAL_MODE


@attrs.frozen(kw_only=True)
class TrainMode(Recorded):
    """The model that was switched to eval() mode last is switched back; the event's name is its class."""

    phase: ClassVar[str] = event_names.TRAIN_MODE


@attrs.frozen(kw_only=True)
class Loop(Recorded):
    """The script's functions that run a step, as the first steps show them; the event's name is the innermost.

    Samples alone show them only if they hit a phase, which takes a small part of some steps.

    Attributes:
        frames: file, line and function, the outermost first.
    """

    phase: ClassVar[str] = event_names.LOOP
    frames: tuple[Frame, ...] = ()


@attrs.frozen(kw_only=True)
class Synchronization(Recorded):
    """Backward passes in which gradients were exchanged, as DistributedDataParallel times some of them.

    Attributes:
        passes: number of them up to the last one that was timed.
        at_us: when that one began, microseconds since the epoch.
        backward_us, communication_us, overlap_us: mean time of the computation, of the exchange, and of both at once.
        parameter_bytes: of the model.
        ranks: number of processes.
    """

    phase: ClassVar[str] = event_names.SYNCHRONIZATION
    passes: int = 0
    at_us: int = 0
    backward_us: float = 0.0
    communication_us: float = 0.0
    overlap_us: float = 0.0
    parameter_bytes: int = 0
    ranks: int = 0


def place_of(at: AtLine | Stage) -> Frame | None:
    """Return file, line and function; None if any of them is unknown."""
    if at.file is None or at.line is None or at.function is None:
        return None
    return at.file, at.line, at.function


KINDS: dict[str, type[Recorded]] = {
    kind.phase: kind
    for kind in (
        Profiling, Save, Log, Compile, Allocator, Operators, CompiledWork, Objects, Threads, Hang, Callback, Epoch, Input, DataStages,
        LoaderWorkers, EvalMode, TrainMode, Loop, Synchronization, ThreadEnd,
    )
}  # fmt: skip
