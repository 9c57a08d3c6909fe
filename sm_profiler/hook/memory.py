"""Memory: long garbage collections, and its growth.

When memory has grown, objects are counted by type, and the container that grew most is located.

A count walks once over all objects that the garbage collector tracks, within a single call of C code, so that hardly any
reference to them outlives it; the search for what holds a container walks over them a few times more.  During such a call
Python code waits, so it is recorded as the hook's own work.  All else happens in slices of a millisecond.  A count begins only
when memory has grown, and when counts with this one have taken a hundredth of the time so far.

The holder of a container is found with the garbage collector's lists, without looking at local variables: Python before
3.13 would keep copies of them.  Functions that run now and add to a container by a name of their own are candidates then.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain, compress, islice, repeat, starmap
from operator import attrgetter, is_not
from time import perf_counter_ns, sleep, thread_time
from types import CodeType, FrameType, ModuleType
from typing import Any

import attrs

from sm_profiler import formatting
from sm_profiler.descriptors import read_regular
from sm_profiler.formats import recorded
from sm_profiler.formats.event_names import GARBAGE_COLLECTION
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook import guard
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import current_frames, is_library, stack_of, uncollected
from sm_profiler.hook.guard import attempt, uninterrupted
from sm_profiler.hook.own_work import OwnWork
from sm_profiler.hook.recorder import resident_bytes

# Garbage collections.

MIN_NS = 1_000_000
FULL = 2  # the oldest generation
_OWN = (__file__, guard.__file__)


class GarbageCollector(Collector):
    """Records the runs of Python's garbage collector, and marks those that the hook caused.

    The hook caused a collection that ran while it worked, and a full one for which it allocated more than the script
    since the last full one: the interpreter starts it when enough objects have survived the younger generations.
    """

    name = "garbage collections"

    def __init__(
        self,
        append: Callable[[Span], None],
        work: OwnWork,
        clock: Callable[[], int] = perf_counter_ns,
        *,
        on_collection: Callable[[FrameType | None, float], None] | None = None,
        is_due: Callable[[], bool] | None = None,
    ) -> None:
        self._append = append
        self._work = work
        self._clock = clock
        self._survived = [0, 0]  # collections of generation 1 since the last full one: the script's, the hook's
        self._is_due = is_due or full_is_due
        self._on_collection = on_collection  # takes the frame that caused it, and its seconds
        self._callback = uninterrupted(self._take)  # Python ignores what a callback raises, an interrupt included
        self._began = 0
        self._due = False  # the interpreter started the collection, and no call of gc.collect()

    def start(self) -> None:
        """Register with the garbage collector."""
        if self._callback not in gc.callbacks:
            gc.callbacks.append(self._callback)

    def close(self) -> None:
        """Unregister."""
        self.failed()

    def failed(self) -> None:
        """Unregister."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._callback)

    def _take(self) -> Generator[int, Any, None]:
        """Take the arguments of the collector's callback in turn: the phase, then what is known about it.

        Flat on purpose: some scripts collect the youngest generation several times a step.
        """
        clock, phase, now = self._clock, "", 0
        while True:
            value = yield 0
            if isinstance(value, str):
                phase, now = value, clock()
            elif phase == "start":
                self._began = now
                if value["generation"] == FULL:
                    self._due = self._is_due()
            elif self._began and (value["generation"] or now - self._began >= MIN_NS):
                self._collected(value["generation"], value.get("collected", 0), now)

    def _collected(self, generation: int, collected: int, now: int) -> None:
        own = during = self._work.is_own()
        if generation == 1:
            self._survived[own] += 1
        elif generation == FULL:
            scripts, hooks = self._survived
            own = own or (self._due and hooks > scripts)
            self._survived = [0, 0]
        if now - self._began >= MIN_NS:
            self._record(generation, collected, now, own=own, during=during)

    def _record(self, generation: int, collected: int, now: int, *, own: bool, during: bool) -> None:
        args: dict[str, Any] = {"generation": generation, "collected": collected}
        if own:
            args["own"] = True
            if not during:  # otherwise part of the work during which it ran
                self._work.stalled_ns += now - self._began
        self._append((GARBAGE_COLLECTION, f"generation {generation}", self._began, now, -1, args))
        if self._on_collection is not None and not own:
            on_collection, frame = self._on_collection, _collecting()
            attempt(lambda: on_collection(frame, (now - self._began) / 1e9))  # an extra


def _collecting() -> FrameType | None:
    """Return the frame in which the collection began: the innermost outside of the hook."""
    frame: FrameType | None = sys._getframe(1)  # the caller's line
    while frame is not None and frame.f_code.co_filename in _OWN:
        frame = frame.f_back
    return frame


def full_is_due() -> bool:
    """Return whether a full collection is due, so that the collection that starts is not a call of gc.collect()."""
    return gc.get_count()[FULL] > gc.get_threshold()[FULL]


Hold = Callable[[], AbstractContextManager[None]]  # surrounds a call that holds the interpreter

# Objects that the garbage collector tracks.  A list of them holds tuples that another thread is building, and CPython raises
# SystemError when a tuple is resized that something else refers to.  So the list must not outlive a single call of C code,
# in which no other thread runs, nor may a collection begin within that call, since it runs callbacks in Python.


def look(kinds: set[type]) -> tuple[list[type], list[Any]]:
    """Return the types of all objects, and the objects of exactly the given types, of which tuple must be none.

    Iterators of C code are put together, as Python code would have to hold the list of all objects: `twice` yields it two
    times, for the types and for `compress(list, map(wanted, types))`.  itertools.tee() will not do, since its blocks are
    also tracked: they would hold one another, and with that some of the list.
    """
    types: list[type] = []
    twice = chain.from_iterable(map(repeat, starmap(gc.get_objects, [()]), [2]))
    nothing: Iterator[Any] = filter(None, map(types.extend, map(partial(map, type), islice(twice, 1))))
    wanted = chain.from_iterable(map(compress, twice, [map(kinds.__contains__, types)]))
    return types, uncollected(partial(list, chain(nothing, wanted)))


def referrers(*held: object) -> list[Any]:
    """Return what refers to any of some objects, except for tuples."""
    twice = chain.from_iterable(map(repeat, starmap(gc.get_referrers, [held]), [2]))
    flags = map(partial(map, partial(is_not, tuple)), map(partial(map, type), twice))
    return uncollected(partial(list, chain.from_iterable(map(compress, twice, flags))))


SLICE = 10_000  # elements that are inspected in one go
PAUSE = 0.001  # seconds, in which another thread gets the interpreter


def slices(values: list[Any], size: int = SLICE) -> Iterator[list[Any]]:
    """Yield parts of a list, and let other threads run in between."""
    for start in range(0, len(values), size):
        yield values[start : start + size]
        sleep(PAUSE)


# The holder of a container, and the lines that add to it.


MAX_DEPTH = 3  # containers inside containers
MAX_REFERRERS = 50
MAX_LINES = 5
MAX_FRAMES = 100
MAX_SOURCE_BYTES = 300_000  # of a file that is parsed
ADDING = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}


@attrs.frozen
class Holder:
    """The name that a container has.

    Attributes:
        name: of a variable or an attribute; "" for any local variable.
        text: what the user calls it: `store of Features`.
        files: where lines that add to it may be.
        code: functions whose local variable it may be; empty for a variable of a module, or an attribute.
    """

    name: str
    text: str
    files: tuple[str, ...]
    code: tuple[CodeType, ...] = ()


def lines_adding_to(container: Any, hold: Hold = nullcontext) -> tuple[str, list[tuple[str, int, str]]]:
    """Return what holds a container, and the user's lines that add to it: file, line, function; empty if unknown."""
    holder = find_holder(container, hold)
    found = list(dict.fromkeys(_adding_lines(holder, type(container))))[:MAX_LINES]
    return holder.text, found


def find_holder(container: Any, hold: Hold = nullcontext) -> Holder:
    """Return who holds a container, directly or inside others."""
    held: Any = container
    for _ in range(MAX_DEPTH):
        found, outer = _named_by(held, hold)
        if found is not None:
            return found
        if outer is None:
            break
        held = outer
    return Holder("", "", (), tuple(_running_code()))


def _named_by(held: Any, hold: Hold) -> tuple[Holder | None, Any]:
    """Return the module or object that has a name for a container; else a container that holds it."""
    for name, module in sys.modules.copy().items():
        key = _key_of(held, getattr(module, "__dict__", None)) if isinstance(module, ModuleType) else None
        if key is not None:
            return Holder(key, f"{key} in {name}", _files(module)), None
    outer = None
    with hold():
        found = referrers(held)[:MAX_REFERRERS]
    owners = _owners([referrer for referrer in found if type(referrer) is dict], hold)
    for referrer in found:
        if type(referrer) in (list, dict):
            owner = owners.get(id(referrer))
            if owner is not None and (key := _key_of(held, referrer)) is not None:
                return _of_object(key, owner), None
            outer = referrer if outer is None else outer
        elif not isinstance(referrer, (FrameType, ModuleType, type)):
            key = _key_of(held, _attributes(referrer))
            if key is not None:
                return _of_object(key, referrer), None
    return None, outer


def _owners(attributes: list[dict[Any, Any]], hold: Hold) -> dict[int, Any]:
    """Return the objects whose attributes some dicts hold, by id of the dict: one walk finds all of them."""
    if not attributes:
        return {}
    sleep(PAUSE)
    with hold():
        found = referrers(*attributes)[: MAX_REFERRERS * len(attributes)]
    wanted = set(map(id, attributes))
    return {id(names): owner for owner in found if id(names := _attributes(owner)) in wanted}


def _attributes(owner: Any) -> Any:
    return attempt(lambda: object.__getattribute__(owner, "__dict__"))  # an object may have no attributes


def _key_of(held: Any, names: Any) -> str | None:
    if type(names) is not dict:
        return None
    # A copy, since other threads may add names; list(names.items()) may begin a collection, in which they run.
    return next((key for key, value in names.copy().items() if value is held and isinstance(key, str)), None)


def _of_object(key: str, owner: Any) -> Holder:
    kind = type(owner)
    return Holder(key, f"{key} of {kind.__qualname__}", _files(sys.modules.get(kind.__module__)))


def _files(module: ModuleType | None) -> tuple[str, ...]:
    """Return the files in which the user may add to something of a module: its own, and those that run now."""
    own = getattr(module, "__file__", None)
    running = (code.co_filename for code in _running_code())
    return tuple(dict.fromkeys(file for file in (own, *running) if isinstance(file, str) and not is_library(file)))


def _running_code() -> Iterator[CodeType]:
    """Yield the code of the user's functions that run now."""
    for thread in current_frames():
        for frame in stack_of(thread)[:MAX_FRAMES]:
            if not is_library(frame.f_code.co_filename):
                yield frame.f_code


def _adding_lines(holder: Holder, kind: type) -> Iterator[tuple[str, int, str]]:
    if not holder.name:
        for code in dict.fromkeys(holder.code):
            for scope, function in _functions(code.co_filename):
                if function == code.co_name != "<module>" and _first_line(scope) == code.co_firstlineno:
                    local = {*code.co_varnames, *code.co_cellvars}
                    yield from _lines(scope, code.co_filename, function, local, kind, attributes=False)
        return
    for file in holder.files:
        found = [
            line for scope, function in _functions(file) for line in _lines(scope, file, function, {holder.name}, kind)
        ]
        if found:
            yield from found
            return


def _first_line(scope: ast.AST) -> int:
    """Return the line on which a function's code begins: that of its first decorator, if it has any."""
    return int(
        min([getattr(scope, "lineno", 1), *(decorator.lineno for decorator in getattr(scope, "decorator_list", ()))])
    )


def _functions(file: str) -> list[tuple[ast.AST, str]]:
    """Return the functions of a file and their names, and the file itself; empty if it cannot be read."""
    try:
        tree = ast.parse(read_regular(file, MAX_SOURCE_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[tuple[ast.AST, str]] = [(tree, "<module>")]
    found += [(node, node.name) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return found


def _lines(
    scope: ast.AST, file: str, function: str, names: set[str], kind: type, *, attributes: bool = True
) -> Iterator[tuple[str, int, str]]:
    """Yield the lines of a function, without those of functions in it, that add to a container with any of the names."""
    for node in _own_nodes(scope):
        target = _grown_by(node, kind)
        if target is None:
            continue
        base = _base(target)
        name = (
            base.id
            if isinstance(base, ast.Name)
            else base.attr
            if isinstance(base, ast.Attribute) and attributes
            else ""
        )
        if name in names:
            yield file, getattr(node, "lineno", 1), function


def _own_nodes(scope: ast.AST) -> Iterable[ast.AST]:
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo.extend(ast.iter_child_nodes(node))


def _grown_by(node: ast.AST, kind: type) -> ast.expr | None:
    """Return what a statement or call adds to."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADDING:
        return node.func.value
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and kind is list:
        return node.target
    if isinstance(node, ast.Assign) and kind is dict:
        return next((target.value for target in node.targets if isinstance(target, ast.Subscript)), None)
    return None


def _base(target: ast.expr) -> ast.expr:
    """Return the variable or attribute of `history["loss"]` or `self.values.setdefault(key, [])`."""
    while True:
        if isinstance(target, ast.Subscript):
            target = target.value
        elif isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            target = target.func.value
        else:
            return target


# The collector.


WARM_UP = 3  # beats until memory is compared
GROWTH = 50_000_000  # bytes gained before a count
GROWTH_SHARE = 0.1  # of the memory, likewise
MAX_COUNTS = 3
SHARE = 0.01  # of the time so far, which counts may take of the CPU
BLOCK_SECONDS = 100e-9  # that a count is expected to take for each block of Python's allocator
MAX_BLOCKS = 2_000_000  # blocks of Python's allocator; a process with more is not counted
MAX_TYPES = 8  # reported
LONG = 8  # elements from which a list is compared
CANDIDATES = 20  # lists that have grown most, whose last elements are measured
MAX_ELEMENTS = 20  # of an element that is a container
POINTER = 8  # bytes, of an object of unknown size


@attrs.frozen
class Census:
    """Objects at one moment: their number by type, what tensors hold, and the lengths of long lists and dicts by id."""

    types: Counter[type]
    tensor_bytes: int
    tensors_in_graphs: int
    lengths: dict[int, int]


class Objects(Collector):
    """Counts on the recorder's thread."""

    name = "objects"

    def __init__(
        self,
        append: Callable[[Span], None],
        resident: Callable[[], int] = resident_bytes,
        clock: Callable[[], int] = perf_counter_ns,
        hold: Hold = nullcontext,
        cpu: Callable[[], float] = thread_time,
    ) -> None:
        self._append = append
        self._hold = hold
        self._cpu = cpu
        self._resident = resident
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Begin to compare."""
        self._beats = self._counts = 0
        self._began, self._spent, self._last = self._clock(), 0.0, 0.0
        self._level = 0
        self._first: Census | None = None

    def forked(self) -> None:
        """Forget the parent's objects."""
        self.start()

    def beat(self) -> None:
        """Count if memory has grown enough since the last count, as soon as the time for it may be taken."""
        self._beats += 1
        if self._beats < WARM_UP or self._counts >= MAX_COUNTS:
            return
        resident = self._resident()
        if not self._level:
            self._level = resident
        elif resident - self._level >= max(GROWTH, GROWTH_SHARE * self._level):
            blocks = sys.getallocatedblocks()
            expected = max(self._last, min(blocks, MAX_BLOCKS) * BLOCK_SECONDS)
            if self._spent + expected > SHARE * (self._clock() - self._began) / 1e9:
                return
            self._level = resident
            self._counts += 1
            if blocks <= MAX_BLOCKS:
                before = self._cpu()
                self._compare()
                self._last = self._cpu() - before
                self._spent += self._last

    def _compare(self) -> None:
        began = self._clock()
        found, grown = census(self._first.lengths if self._first else {}, self._hold)
        first = self._first
        if first is None:
            self._first = found
            return
        text, lines, size, held = "", list[tuple[str, int, str]](), 0, 0
        if grown is not None:
            holder, lines = lines_adding_to(grown, self._hold)
            before = first.lengths[id(grown)]
            size, held = sys.getsizeof(grown), held_by_newest(grown, len(grown) - before)
            text = _describe(grown, holder, before, held)
            del grown
        more = Counter({kind: count - first.types.get(kind, 0) for kind, count in found.types.items()})
        growth = recorded.Objects(
            types={_name(kind): count for kind, count in more.most_common(MAX_TYPES) if count > 0},
            tensor_bytes=found.tensor_bytes - first.tensor_bytes,
            tensors_in_graphs=found.tensors_in_graphs - first.tensors_in_graphs,
            container=text or None,
            container_bytes=size,
            new_elements_bytes=held,
            lines=tuple(lines) or None,
        )
        self._append(growth.span("objects", began, self._clock()))


def census(before: dict[int, int], hold: Hold = nullcontext) -> tuple[Census, Any]:
    """Count all objects, and find the list or dict that has gained most since `before`, None if none has grown."""
    kinds = {kind for name in TENSORS if (kind := _type_of(name)) is not None}
    with hold():
        all_types, found = look({list, dict, *kinds})
    size, in_graphs, long = 0, 0, list[Any]()
    while found:  # from its end, so that nothing is held for longer than it is inspected
        part = found[-SLICE:]
        del found[-SLICE:]
        tensors = [one for one in part if type(one) in kinds]
        with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse tensors have no size
            size += sum(map(attrgetter("nbytes"), tensors))
        with contextlib.suppress(RuntimeError):  # torch.compile keeps tensors that are not defined
            in_graphs += len(tensors) - sum(map(attrgetter("is_leaf"), tensors))
        long += [one for one in part if type(one) not in kinds and len(one) >= LONG]
        del part, tensors
        sleep(PAUSE)
    types = Counter[type]()
    for some in slices(all_types):
        types.update(some)
    lengths, known = dict[int, int](), list[Any]()
    for some in slices(long):
        lengths.update(zip(map(id, some), map(len, some), strict=True))
        known += [container for container in some if lengths[id(container)] > before.get(id(container), sys.maxsize)]
    del long
    known.sort(key=lambda container: before[id(container)] - lengths[id(container)])
    grown = max(
        known[:CANDIDATES],
        key=lambda container: _weight(container, lengths[id(container)] - before[id(container)]),
        default=None,
    )
    return Census(types, size, in_graphs, lengths), grown


def _type_of(name: str) -> Any:
    """Return a class of a module that has been imported; None if it has not."""
    module, _, kind = name.rpartition(".")
    return getattr(sys.modules.get(module), kind, None)


def _weight(container: Any, gained: int) -> tuple[bool, int]:
    """Return what rates how much a container has gained: whether it holds graphs, and bytes."""
    graphs, size = _held(_last(container), MAX_DEPTH)
    return graphs, gained * size


def held_by_newest(container: Any, count: int) -> int:
    """Return about how many bytes the newest elements of a list or dict hold, by a sample of them."""
    with contextlib.suppress(RuntimeError):  # another thread adds to the dict
        newest = reversed(container if isinstance(container, list) else container.values())
        sample = list(islice(newest, 0, count, max(count // MAX_ELEMENTS, 1)))
        distinct = {
            id(element): element for element in sample
        }.values()  # the same object may have been added many times
        found = sum(_held(element, MAX_DEPTH)[1] for element in distinct)
        return found * count // len(sample) if len(distinct) > 1 else found
    return 0


def _held(held: Any, depth: int) -> tuple[bool, int]:
    """Return whether something holds tensors with their graphs, and about how many bytes it holds."""
    kind = type(held)
    if kind in (list, tuple, dict) and depth and held:
        each = list(held.copy().values() if kind is dict else held)  # a copy, since other threads may add to it
        found = [_held(inner, depth - 1) for inner in each[-MAX_ELEMENTS:]]
        inside = sum(size for _, size in found) * len(each) // len(found)
        return any(graphs for graphs, _ in found), sys.getsizeof(held) + inside
    name = _full_name(kind)
    if name in (*TENSORS, "numpy.ndarray"):
        with contextlib.suppress(RuntimeError, NotImplementedError):
            return not getattr(held, "is_leaf", True), int(held.nbytes)
    if name.startswith("builtins."):
        return False, sys.getsizeof(held)
    if depth:  # its attributes, without running code of its class
        found = [_held(inner, depth - 1) for inner in gc.get_referents(held)[:MAX_ELEMENTS] if _is_data(inner)]
        return any(graphs for graphs, _ in found), POINTER + sum(size for _, size in found)
    return False, POINTER


def _is_data(held: Any) -> bool:
    kind = type(held)
    return kind in (list, tuple, dict, str, bytes, bytearray) or _full_name(kind) in (*TENSORS, "numpy.ndarray")


def _last(container: Any) -> Any:
    try:
        return container[-1] if isinstance(container, list) else container[next(reversed(container))]
    except (IndexError, KeyError, StopIteration, RuntimeError):
        return None


TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")


def _describe(container: Any, holder: str, before: int, held: int) -> str:
    """Return what a container is called and holds.

    For example, `list history in __main__: 100 → 900 elements of Tensor; the new ones hold about 3.2 MB`.
    """
    name = f" {holder}" if holder else ""
    kind = _name(type(_last(container)))
    grown = f"{type(container).__name__}{name}: {before:,} → {len(container):,} elements of {kind}"
    return f"{grown}; the new ones hold about {formatting.size(held)}" if held else grown


def _full_name(kind: type) -> str:
    """Return module and name; types that C code creates (those of Triton's compiler do) may have no module."""
    return f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"


def _name(kind: type) -> str:
    return kind.__qualname__ if getattr(kind, "__module__", "") in ("", "builtins", "torch") else _full_name(kind)
