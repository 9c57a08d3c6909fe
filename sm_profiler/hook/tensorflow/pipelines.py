"""tf.data: how long the loop waits for each batch, and how slow each stage of the pipeline is.

Stages come from the model that TensorFlow's autotuning keeps of each iterator, with the user's function behind each.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from importlib import import_module
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import attrs

from sm_profiler.formats.event_names import COMPILED_STEP, DATALOADER_ITER, DATALOADER_WAIT
from sm_profiler.formats.recorded import DataStages, Stage
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import definition
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.steps import WAITED, WAITED_UNRECORDED
from sm_profiler.hook.tensorflow.compilations import code_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm_profiler.hook.session import Session
    from sm_profiler.hook.tensorflow.stopwatch import Times


# Stages of a pipeline.


MAX_STAGES = 8  # in a record, the slowest
MAX_NODES = 500
# Model's node → method of a dataset.  The methods with a function of the user's come first; of the others, the name helps.
_METHODS = (
    (re.compile(r"^(Parallel)?MapAndBatch|^(Parallel)?Map(V\d)?$"), "map"),
    (re.compile(r"^(Parallel)?Interleave"), "interleave"),
    (re.compile(r"^FlatMap$"), "flat_map"),
    (re.compile(r"^(Parallel)?Filter$"), "filter"),
    (re.compile(r"^Scan$"), "scan"),
    (re.compile(r"^Generator$"), "from_generator"),
    (re.compile(r"^(Parallel)?(Padded)?Batch(V\d)?$"), "batch"),
    (re.compile(r"^Shuffle|^Repeat|^Prefetch|^Cache|^TFRecord|^TextLine|^Take|^Skip|^Zip|^Shard|^Unbatch"), ""),
)
_CLASSES = {
    "_MapDataset": "map", "_ParallelMapDataset": "map", "_InterleaveDataset": "interleave",
    "_ParallelInterleaveDataset": "interleave", "_FlatMapDataset": "flat_map", "_FilterDataset": "filter",
    "_ScanDataset": "scan",
}  # fmt: skip
_INSIDE = ("interleave", "flat_map")  # whose function makes datasets


def describe(model: Any, dataset: Any) -> DataStages:
    """Return the stages of a dataset's pipeline from the `ModelProto` of its iterator."""
    nodes = dict(list(model.nodes.items())[:MAX_NODES])
    root = nodes.get(model.output) or max(nodes.values(), key=lambda node: node.num_elements, default=None)
    batches = max(int(root.num_elements), 1) if root is not None else 1
    owners = _owners(nodes, model.output)
    functions = _functions(nodes, owners, dataset)
    ended = {key: _ended(node, nodes) for key, node in nodes.items() if _method(node.name) in _INSIDE}
    stages: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key, node in nodes.items():
        if node.num_elements <= 0 or node.name == "Root":
            continue
        owner = owners.get(key)
        about = functions.get(key if owner is None else owner, {})
        name = _stage(node.name, about)
        if owner is not None:
            name = f"{_method(node.name)} inside {_stage(nodes[owner].name, about)}"
        parallelism = next(
            (float(parameter.value) for parameter in node.parameters if parameter.name == "parallelism"), 0.0
        )
        stage = stages.setdefault(
            (name, about.get("line")),
            {"stage": name, "elements": 0, "busy_us": 0.0, "parallelism": 0.0, "parallel": parallelism > 0} | about,
        )
        times = 1.0 if owner is None else ended.get(owner, 1.0)
        stage["elements"] += node.num_elements * times
        stage["busy_us"] += node.processing_time / 1e3 * times
        stage["parallelism"] = max(stage["parallelism"], parallelism, 1.0)
    found = [_summed(stage, batches) for stage in stages.values()]
    names = [node.name for node in nodes.values()]
    forgotten = [key for key, times in ended.items() if not times and key not in owners]
    about = _forgotten(nodes[forgotten[0]], functions.get(forgotten[0], {}), dataset) if len(forgotten) == 1 else {}
    return DataStages(
        forgotten=Stage(**about) if about else None,
        batches=batches,
        partial=any(not times for times in ended.values()),
        prefetch=any(name.startswith("Prefetch") for name in names),
        cache=any("Cache" in name for name in names),
        stages=tuple(Stage(**stage) for stage in sorted(found, key=lambda stage: -stage["batch_us"])[:MAX_STAGES]),
    )


def _ended(node: Any, nodes: dict[int, Any]) -> float:
    """Return how many times the elements that the living pipelines inside a node produced it has passed on; 0 without any.

    The living pipelines count for those that have ended, of which TensorFlow keeps nothing.
    """
    inside = [nodes[key] for key in list(node.inputs)[1:] if key in nodes]
    produced = sum(node.num_elements for node in inside)
    if node.num_elements <= 0:
        return 1.0
    return max(node.num_elements / produced, 1.0) if produced else 0.0


def _forgotten(node: Any, about: dict[str, Any], dataset: Any) -> dict[str, Any]:
    """Return what TensorFlow forgot inside a stage, if its function is known."""
    made = [_place(generator) for generator in _generators(dataset)]
    if len(made) == 1 and made[0] and _method(node.name) == "flat_map":
        return {"stage": f"from_generator({made[0]['function']})", **made[0]}
    return {"stage": f"{_method(node.name)}({about['function']})", **about} if "file" in about else {}


def _summed(stage: dict[str, Any], batches: int) -> dict[str, Any]:
    busy, elements = stage.pop("busy_us"), stage.pop("elements")
    return stage | {"us": round(busy / elements, 1), "batch_us": round(busy / batches / stage["parallelism"], 1)}


def _method(name: str) -> str:
    for pattern, method in _METHODS:
        if pattern.match(name):
            return method or re.sub(r"V\d$", "", name).lower()
    return re.sub(r"V\d$", "", name)


def _stage(name: str, about: dict[str, Any]) -> str:
    """Return `map(decode)`, or `batch`."""
    return f"{_method(name)}({about['function']})" if about.get("function") else _method(name)


def _owners(nodes: dict[int, Any], output: int) -> dict[int, int]:
    """Return node → the outermost interleave or flat_map in whose function its dataset is made."""
    owners: dict[int, int] = {}
    waiting: list[tuple[int, int | None]] = [(output, None)]
    seen = set()
    while waiting:
        key, owner = waiting.pop()
        node = nodes.get(key)
        if node is None or key in seen:
            continue
        seen.add(key)
        if owner is not None and _method(node.name) != "from_generator":
            owners[key] = owner
        inside = _method(node.name) in _INSIDE
        for number, following in enumerate(node.inputs):
            waiting.append((following, owner if owner is not None or not (inside and number) else key))
    return owners


def _functions(nodes: dict[int, Any], owners: dict[int, int], dataset: Any) -> dict[int, dict[str, Any]]:
    """Return node → file, line and function of the user's function in it, where nodes and datasets agree."""
    found: dict[int, dict[str, Any]] = {}
    known: dict[str, list[Any]] = {}
    for kind, function in _datasets(dataset):
        known.setdefault(kind, []).append(function)
    outside = [key for key in sorted(nodes) if key not in owners]
    for method in set(_CLASSES.values()):
        keys = [key for key in outside if _method(nodes[key].name) == method]
        functions = known.get(method, [])
        if len(keys) == len(functions):
            for key, function in zip(keys, functions, strict=True):
                found[key] = _place(function)
    generators = [key for key in nodes if _method(nodes[key].name) == "from_generator"]
    made = _generators(dataset)
    if len(made) == 1:
        found |= dict.fromkeys(generators, _place(made[0]))
    return {key: about for key, about in found.items() if about}


def _generators(dataset: Any) -> list[Any]:
    """Return the user's generators that a pipeline reads."""
    flat = [function for kind, function in _datasets(dataset) if kind == "flat_map"]
    return [generator for generator in map(_generator, flat) if generator is not None]


def _datasets(dataset: Any) -> list[tuple[str, Any]]:
    """Return the methods and functions of a chain of datasets, from the last to the first."""
    found: list[tuple[str, Any]] = []
    waiting = [dataset]
    while waiting and len(found) < MAX_NODES:
        stage = waiting.pop(0)
        kind = _CLASSES.get(type(stage).__name__)
        if kind is not None:
            wrapper = getattr(stage, "_map_func", None) or getattr(stage, "_predicate", None) or getattr(stage, "_scan_func", None)  # fmt: skip
            found.append((kind, getattr(wrapper, "_func", None)))
        waiting += list(stage._inputs())  # TensorFlow has no public name for it
    return found


def _place(function: Any) -> dict[str, Any]:
    code = code_of(function)
    if code is None:
        return {}
    own = definition(code)
    return own or ({"function": code.co_name} if not code.co_name.startswith("_") else {})


def _generator(function: Any, depth: int = 3) -> Any:
    """Return the user's generator in the closure of the function that `from_generator` makes, or None."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            inside = cell.cell_contents
        except ValueError:
            continue
        if type(inside).__name__ == "_GeneratorState":
            return getattr(inside, "_generator", None)
        if depth and callable(inside) and (deeper := _generator(inside, depth - 1)) is not None:
            return deeper
    return None


# The collector.


DATALOADER = "dataloader"
RECENT_DATASETS = 8  # whose iterators are sampled
ENDS = 4  # iterators that are sampled when they end: epochs may be shorter than the interval of the recorder


@attrs.define(eq=False)
class _Pipeline:
    """The latest iterator of a dataset, and the beat at which its model is read next."""

    dataset: Any  # weak references
    iterator: Any
    beats: int = 0
    due: int = 1


class Stages(Collector):
    """Reads the model that TensorFlow's autotuning keeps of each iterator, on the recorder's thread: of a dataset less and less often."""

    name = DATALOADER
    follows_steps = False  # batches are fetched ahead of their step

    def __init__(self, session: Session, tensorflow: Any) -> None:
        self._session = session
        self._read = tensorflow.data.experimental.get_model_proto
        self._missing = tensorflow.errors.NotFoundError
        self._eager = tensorflow.executing_eagerly
        self._pipelines: deque[_Pipeline] = deque(maxlen=RECENT_DATASETS)
        self._patches = Patches(functools.partial(session.switch_off, self))
        self._ends = 0
        self._parallelism = -1

    def install(self) -> None:
        """Patch the iterators."""
        iterators = import_module("tensorflow.python.data.ops.iterator_ops")
        self._patches.after(iterators.OwnedIterator, "__init__", self._created)

    def remove(self) -> None:
        """Restore TensorFlow."""
        self._patches.remove()

    def _created(self, _none: None, iterator: Any, dataset: Any = None, *_args: Any, **_kwargs: Any) -> None:
        if dataset is None or not self._eager() or self._session.quiet:
            return
        latest = weakref.ref(iterator)
        for pipeline in self._pipelines:
            if pipeline.dataset() is dataset:  # another epoch: its model is known, and reading it takes milliseconds
                pipeline.iterator = latest
                return
        self._pipelines.append(_Pipeline(weakref.ref(dataset), latest))

    def beat(self) -> None:
        """Read models that are due."""
        for pipeline in list(self._pipelines):
            pipeline.beats += 1
            if pipeline.beats >= pipeline.due:
                pipeline.due *= 2
                self._look(pipeline.iterator())

    def iterator_ended(self, iterator: Any) -> None:
        """Read the model of an iterator that has no more batches."""
        if self._ends < ENDS and not self._session.is_off(self.name):
            self._ends += 1
            with self._session.work.doing("stages of tf.data are read"):
                self._session.run(self, self._look, iterator)

    def epoch_ended(self) -> None:
        """Read the models of the iterators that a function has read from."""
        for iterator in [pipeline.iterator() for pipeline in self._pipelines]:
            if iterator is not None:
                self.iterator_ended(iterator)

    def close(self) -> None:
        """Read the models of the iterators that are still there."""
        for pipeline in self._pipelines:
            self._look(pipeline.iterator())

    def forked(self) -> None:
        """Forget the parent's iterators."""
        self._pipelines.clear()

    def _look(self, iterator: Any) -> None:
        dataset = getattr(iterator, "_dataset", None)
        if dataset is None:
            return
        try:
            model = self._read(iterator)
        except self._missing:
            self._session.note("tf.data", "stages of the input pipeline are unknown: its autotuning is off")
            return
        about = describe(model, dataset)
        if about.stages:
            self._parallelism = int(about.stages[0].parallelism or 0)
            now = perf_counter_ns()
            self._session.append(about.span("tf.data", now, now, self._session.tracker.latest_number))

    @property
    def wanted(self) -> bool:
        """True while batches are recorded, or will be."""
        return self._session.schedule.is_ahead(DATALOADER)

    def batch(self, name: str, start_ns: int, end_ns: int) -> None:
        """Record a batch, if it is inside the window."""
        tracker = self._session.tracker
        if self._session.schedule.takes_batch(DATALOADER, tracker):
            about = {"worker_id": -1} | ({"num_workers": self._parallelism} if self._parallelism >= 0 else {})
            tracker.append((DATALOADER_ITER, f"{name}::GetNext", start_ns, end_ns, -1, about))


# Waits inside graphs, of which Python sees only the times.


RECENT_RUNS = 3  # the shortest of their last batches is the computation of a batch, which other load only lengthens


class Overlap:
    """Finds how much of the waiting for data is hidden behind computation.

    With `steps_per_execution`, Keras requests the next batch as it begins to compute a batch: neither needs the other.  The
    last batch of a run is computed while nothing is fetched, which shows how long that takes.
    """

    def __init__(self) -> None:
        self._alone: dict[Hashable, deque[int]] = defaultdict(lambda: deque(maxlen=RECENT_RUNS))

    def hidden(self, waits: Sequence[Times], end_ns: int, kind: Hashable = None) -> int:
        """Return the nanoseconds of the waits of a run during which it also computed.

        Args:
            waits: the run's fetches, in time order.
            end_ns: end of the run.
            kind: what the run does; training and evaluation compute for different times.
        """
        if not waits[1:]:
            return 0
        alone = self._alone[kind]
        alone.append(max(end_ns - waits[-1].end_ns, 0))
        computing = min(alone)
        if 2 * (waits[1].start_ns - waits[0].end_ns) > computing:  # one after the other
            return 0
        return sum(min(later.end_ns - later.start_ns, computing) for _, later in pairwise(waits))


class LateWaits:
    """Completes records on the recorder's thread.

    Args:
        batches: takes the waits that began before a time, in time order.
    """

    def __init__(self, batches: Callable[[int], list[Times]]) -> None:
        self._batches = batches
        self._waits: deque[Times] = deque()  # of steps whose records have not come yet
        self._latest = (-1, -1)  # start of the latest step before and after its waits

    def complete(self, records: list[Span]) -> list[Span]:
        """Return records with the waits of their steps; a wait belongs to the step in which it ends."""
        ends = [record[3] for record in records if record[5] is WAITED or record[5] is WAITED_UNRECORDED]
        if ends:
            self._waits += self._batches(ends[-1])
        elif not any(record[0] == COMPILED_STEP and record[2] == self._latest[0] for record in records):
            return records
        found: list[Span] = []
        for record in records:
            phase, name, start, end, step, more = record
            if more is WAITED or more is WAITED_UNRECORDED:
                began = start + self._waited(start, end)
                self._latest = start, began
                if began > start and more is WAITED:
                    found.append((DATALOADER_WAIT, "tf.data", start, began, step, None))
                found.append((phase, name, began, end, step, None))
            elif phase == COMPILED_STEP and start == self._latest[0]:
                found.append((phase, name, self._latest[1], end, step, more))
            else:
                found.append(record)
        return found

    def _waited(self, start_ns: int, end_ns: int) -> int:
        """Return the nanoseconds of the waits in a step; earlier waits are those of callbacks."""
        waited = 0
        while self._waits and self._waits[0].end_ns <= end_ns:
            wait = self._waits.popleft()
            waited += max(wait.end_ns - max(wait.start_ns, start_ns), 0)
        return waited
