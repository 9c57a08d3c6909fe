"""The ledger of a profile's training loop: every second of each of its steps, in exactly one activity.

A step has parts: waiting, in a pass, outside. What was recorded by itself (a save, a log
line, a callback, a compilation, a collection), or seen in samples, is taken out of the part in which it happened: the
innermost wins. Only this module decides which is which.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.ledger import TRANSFER, UNSEEN, Ledger, RankLedger, RankTotals, Totals
from sm_profiler.diagnosis.profile.lines import AROUND_THE_LOOP
from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.formats.recorded import AtLine, Callback, Compile, CompiledWork, Log, Loop, Save, TimedCall
from sm_profiler.formatting import shorten
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import JobMetrics, Rank
from sm_profiler.metrics.parts import Covered, without_inner
from sm_profiler.metrics.record_fold import Record
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.metrics.stalls import strata
from sm_profiler.metrics.step_fold import TRAIN

BETWEEN, EVALUATION, OUTSIDE = "between", "evaluation", "outside"  # keys of derived parts
WAIT, COLLECTING = "waiting for data", "garbage collection"
SAVING, LOGGING, CALLBACKS = "saving", "logging", "callbacks"
COMPILING, AGAIN = "compiling", "compiling again"
UNMATCHED = "waiting for ranks with more steps"
MAKING, COPYING = "making batches", "copies to the device"
RUNNING = "waiting for results"  # of compiled functions, which run while the script goes on
OTHER = "other code"
PHASE = "phase "  # start of the names of the script's own phases
# Activities that have causes of their own: what is long in some steps is long elsewhere.
NAMED = (SAVING, LOGGING, CALLBACKS, AGAIN, COLLECTING, EVALUATION, UNMATCHED)
_NAMES = {"wait": WAIT, BETWEEN: OTHER, OUTSIDE: OTHER}  # key of a part → activity, if it has another name
_DURING = {
    WAIT: "waiting for data", SAVING: "saving files", LOGGING: "logging", CALLBACKS: "in callbacks", MAKING: "making batches",
    COPYING: "copying to the device", RUNNING: "waiting for results", TRANSFER: "in collectives", OTHER: "outside the phases",
}  # fmt: skip

# Kind of a record → its activity, and the parts that it may have interrupted, the likeliest first.
_BESIDE = (OUTSIDE, EVALUATION, parts.DECLARED, BETWEEN, "wait", "compiled", "forward", "backward", "optimizer")
_INSIDE = ("compiled", "forward", "backward", "optimizer", BETWEEN, OUTSIDE, EVALUATION, "wait")
RECORDED: dict[type[AtLine], tuple[str, tuple[str, ...]]] = {
    Save: (SAVING, _BESIDE),
    Log: (LOGGING, _BESIDE),
    Callback: (CALLBACKS, _BESIDE),
    Compile: (COMPILING, _INSIDE),
}
# Code outside the phases that the hook does not time, by its stack samples: the innermost function of a library, then the
# text of the script's line, for functions that have no frame.
_LEAVES = (
    (SAVING, re.compile(r"^(PIL\.(Image|ImageFile|\w+ImagePlugin)\.(Image\.)?(save|_save|_encode\w*|_write\w*|_crc32|_safe_\w+)|torch\.serialization|"
                        r"safetensors|h5py|numpy\.lib\.\w*npyio|matplotlib\.(figure|backends)\.|imageio|soundfile|pyarrow\.\w*write)")),
    (LOGGING, re.compile(r"^(logging|json\.(encoder|dumps?|_default)|csv)\b|tensorboard|wandb|mlflow")),
)  # fmt: skip
_LINES = (
    (
        SAVING,
        re.compile(
            r"""\bopen\(.*["'](?:[wxa]b?\+?|b[wxa]|r\+b?|rb\+)["']|\.(tofile|write_bytes)\(|\bpickle\.dump\(|\.to_(parquet|pickle|feather|hdf)\("""
        ),
    ),
    (
        LOGGING,
        re.compile(r"\.(write|writelines|writerow|writerows|flush)\(|\bjson\.dumps?\(|\bprint\(|\.to_(csv|json)\("),
    ),
)
# Innermost functions that exchange data with other ranks, and wait for them.
COLLECTIVES = re.compile(
    r"^(torch\.distributed\.(\w+$|distributed_c10d|_functional_collectives|nn\.functional)|"
    r"torch\.nn\.parallel\.distributed\.\w+\._(distributed_broadcast_coalesced|sync_\w+)|horovod|smdistributed|deepspeed\.comm)\b"
)
_EXCHANGES = re.compile(
    r"\b(all_gather|all_reduce|all_to_all|reduce_scatter|broadcast_object|gather_object|scatter_object)\w*\("
)
_MODULES = re.compile(r"^torch\.nn\.modules\.(?!module\b)")
_UPDATES = re.compile(
    r"\.grad\b|\bgrad(ient)?s?\b|\bapply_updates\(|\.(add|sub|mul|addcdiv|addcmul|lerp|copy|zero)_\("
)  # of parameters, by hand
_BEFORE = re.compile(r"""(["']).*?\1|^[\w\s,.\[\]]+=(?!=)""")  # text, and names that a line assigns to
_OWN_STEP = re.compile(r"\b\w*opt\w*\.step\(")  # a line that calls the script's own optimizer
# Innermost functions of a phase that is called without a module or backward().
_COMPUTING = {
    "backward": re.compile(r"^torch\.(_functorch|func|_decomp|autograd\.(graph|functional|_make_grads|grad$))\b"),
    "forward": re.compile(r"^torch\.nn\.functional\."),
}
# Innermost functions that compute the loss, from the forward pass to the gradients. To read a tensor's elements one by
# one, as metrics do, computes nothing.
_LOSS = re.compile(
    r"^torch\.(nn\.(functional|modules)|functional|distributions|special|linalg|fft|_tensor)\b"
    r"(?!\.Tensor\.__(iter|len|contains|array|repr|format|hash)__)"
)
_UPDATE = re.compile(r"^torch\.(nn\.utils|optim)\.")  # clips gradients and updates parameters, also in hooks
COPIES = re.compile(r"\.(to|cuda|copy_|pin_memory)\(|send_to_device\(|move_data_to_device\(")
_NEXT_BATCH = re.compile(r"^\s*(async\s+)?for\b.*\bin\b|\bnext\(")  # the line from which a loop calls its iterator
# Functions that a library calls in a forward pass, but for hooks of modules.
_OF_MODULES = re.compile(r"^(forward|call|\w+_step|__\w+__)$|^<")
_CALLBACK = re.compile(r"(^|\.)on_(train|validation|test|predict|fit|batch|epoch|step|log|save|evaluate)(_\w+)?$")
# Phases in which libraries may call functions of the script, and lines that run these phases.
_CALLING = {"optimizer": re.compile(r"\bstep\("), "backward": re.compile(r"backward\(")}
_LAUNCH = "jax._src.dispatch.apply_primitive"  # waits for what runs; its Python takes as long as launching itself
_READ = re.compile(r"^jax\._src\.(array\.ArrayImpl\._value|api\.block_until_ready)")
_STEPS = ("forward", "backward", "optimizer", "compiled")
_SHORT_STEPS = ("between",)  # of which no sample fell into a phase
FLUSHES = ("os.fsync", "os.fdatasync")
LOOPS = re.compile(r"\.(fit|evaluate|predict)\(")  # whose results a line prints: it runs a whole loop
TRAINS = re.compile(r"\.(fit|train)\(")  # a line that runs the training's whole loop
_CLOCK = 1e-6  # seconds by which the end of a row and what happened in it may differ
_BESIDE_STEPS = ("outside", "between")
BESIDE_THE_PHASES = (*_BESIDE_STEPS, "evaluation")  # phases of samples


def ledger_of(metrics: JobMetrics, ranks: Sequence[Rank] | None = None, seen: SeenCode | None = None) -> Ledger:
    """Return the ledger of the training steps after the warm-up; of some ranks, by default all.

    Args:
        metrics: the job in numbers.
        ranks: the ranks.
        seen: `SeenCode.of(metrics)`, if the caller has it.
    """
    seen = SeenCode.of(metrics) if seen is None else seen
    chosen = [rank for rank in (metrics.ranks if ranks is None else ranks) if rank.loop > 0 and len(rank.iterations)]
    return Ledger(tuple(_Rows.of(rank, metrics, seen).ledger for rank in chosen), source=metrics.name)


def totals_of(metrics: JobMetrics, seen: SeenCode | None = None) -> Totals | None:
    """Return the sums of a profile's whole training loops; None without one. The arguments are those of `ledger_of`."""
    seen = SeenCode.of(metrics) if seen is None else seen
    ranks = [_totals(rank, metrics, seen) for rank in metrics.ranks if rank.loop > 0]
    return Totals(tuple(ranks)) if ranks else None


def _totals(rank: Rank, metrics: JobMetrics, seen: SeenCode) -> RankTotals:
    """Divide a rank's loop: its parts are those of all steps, and each is divided in proportion to the rows."""
    seconds = defaultdict[str, float](float)
    rows = _Rows.of(rank, metrics, seen, warm=False) if len(rank.iterations) else None
    # What is between the phases and outside of them is divided together: of a step without phases, which of them is unknown.
    alone = [(part.key,) for part in parts.PARTS if part.key not in ("gc", BETWEEN, OUTSIDE)]
    for keys in (*alone, (OUTSIDE, BETWEEN)):
        found = defaultdict[str, float](float)
        for key in keys:
            for name, row in (rows.divided(key) if rows else {}).items():
                found[name] += float(row.sum())
        found.pop(COLLECTING, None)
        whole = sum(found.values())
        shares = {name: spent / whole for name, spent in found.items()} if whole > 0 else _names(rank, metrics, keys[0])
        for name, share in shares.items():
            seconds[name] += sum(rank.seconds[key] for key in keys) * share
    seconds[COLLECTING] = rank.seconds["gc"]
    judged = rank.train_steps - rank.left_out
    return RankTotals(rank.name, judged, {name: spent for name, spent in seconds.items() if spent > 0})


def _names(rank: Rank, metrics: JobMetrics, key: str) -> dict[str, float]:
    """Return the activities that are left of a part, with their shares of it."""
    declared = sum(rank.declared.values())
    if key == parts.DECLARED and declared > 0:
        return {f"{PHASE}{shorten(name, 40)}": spent / declared for name, spent in rank.declared.items()}
    if key == "compiled" and (updates := updates_in_compiled(metrics, rank.name)) > 0:
        return {key: 1 - updates, "optimizer": updates}
    if key in (BETWEEN, OUTSIDE) and not any(one.process == rank.name for one in metrics.samples.stacks):
        return {UNSEEN: 1.0}
    return {_NAMES.get(key, key): 1.0}


def updates_in_compiled(metrics: JobMetrics, process: str) -> float:
    """Return the optimizer's share of a rank's compiled functions, as its detailed windows show it; 0 if none does."""
    found = [one.args.optimizer for one in metrics.recorded(CompiledWork).of(process)]
    return min(max(sum(found) / len(found), 0.0), 1.0) if found else 0.0


@attrs.frozen
class _Recorded:
    """A record, its activity, the parts that it may have interrupted, and how much longer all like it took together."""

    record: Record[AtLine]
    name: str
    from_parts: tuple[str, ...]
    scale: float

    @property
    def start(self) -> float:
        """Start, seconds since the epoch."""
        return self.record.start


@attrs.define(eq=False)
class _Rows:
    """The rows of one rank, each from the end of a training step to the end of the next, while they are divided.

    Attributes:
        rank: the rank.
        steps: number of the training step that ends each row.
        start: seconds since the epoch.
        left: part → seconds of each row that nothing has been taken out of yet.
        taken: (activity, part) → seconds of each row that were taken out of the part.
        names: part → activities of what is left of it, with the share of each.
        timed: file and line of the calls that were recorded one by one.
    """

    rank: Rank
    steps: Ints
    start: Floats
    left: dict[str, Floats]
    taken: dict[tuple[str, str], Floats] = attrs.field(factory=dict)
    names: dict[str, dict[str, float]] = attrs.field(factory=dict)
    timed: set[tuple[str, int]] = attrs.field(factory=set)

    @classmethod
    def of(cls, rank: Rank, metrics: JobMetrics, seen: SeenCode, *, warm: bool = True) -> _Rows:
        found = rows_of_rank(rank, warm=warm)
        left = {key: found.seconds[at].copy() for at, key in enumerate(row_keys())}
        rows = cls(rank, found.index, found.start, left, names={key: _names(rank, metrics, key) for key in left})
        rows._take_collections()
        rows._take_records(metrics, seen.writers())
        rows._take_unmatched(metrics.ranks)
        rows._take_samples(seen)
        return rows

    @property
    def ledger(self) -> RankLedger:
        """The division as a ledger."""
        seconds: dict[str, Floats] = {}
        for key in self.left:
            for name, spent in self.divided(key).items():
                seconds[name] = seconds[name] + spent if name in seconds else spent
        length = np.sum(list(seconds.values()), axis=0) if seconds else np.zeros(len(self.steps))
        return RankLedger.of(self.rank.name, self.steps, length, seconds)

    def divided(self, key: str) -> dict[str, Floats]:
        """Return the seconds of each row by activity, of a part."""
        if key not in self.left:
            return {}
        found = {name: self.left[key] * share for name, share in self.names[key].items()}
        for (name, part), row in self.taken.items():
            if part == key:
                found[name] = found[name] + row if name in found else row
        return found

    def _take(self, name: str, wanted: Floats, from_parts: Sequence[str]) -> None:
        """Take seconds of each row out of parts, as far as these have them."""
        wanted = np.maximum(np.nan_to_num(wanted), 0.0)
        for key in from_parts:
            found = np.minimum(self.left[key], wanted)
            if found.any():
                self.left[key] = self.left[key] - found
                wanted = wanted - found
                before = self.taken.get((name, key))
                self.taken[name, key] = found if before is None else before + found

    def _take_collections(self) -> None:
        iterations = self.rank.iterations
        collected = self._placed(iterations.index, iterations.gc)
        if not collected.any():
            return
        waits = self.rank.gc_in_wait / self.rank.gc if self.rank.gc > 0 else 0.0
        self._take(COLLECTING, collected * min(waits, 1.0), ("wait",))
        missing = collected - sum(
            (row for (name, _), row in self.taken.items() if name == COLLECTING), np.zeros(len(collected))
        )
        self._take(COLLECTING, missing, (OUTSIDE, BETWEEN, parts.DECLARED, "backward", "forward", "optimizer", "compiled", EVALUATION, "wait"))  # fmt: skip

    def _placed(self, index: Ints, values: Floats) -> Floats:
        found = np.zeros(len(self.steps))
        at = np.minimum(np.searchsorted(self.steps, index), len(self.steps) - 1)
        known = self.steps[at] == index
        np.add.at(found, at[known], np.maximum(np.nan_to_num(values[known]), 0.0))
        return found

    def _take_records(self, metrics: JobMetrics, writers: Collection[tuple[str, str]]) -> None:
        found = self._recorded(metrics, writers)
        calls = sorted(
            (one for one in found if one.record.calls == 1), key=lambda one: (one.start, -one.record.seconds)
        )
        spent = self._own_times(calls)
        starts = np.asarray([one.start for one in calls], np.float64)
        row = np.searchsorted(self.start, starts, side="right") - 1
        until = (self.start + self.length)[np.maximum(row, 0)]
        inside = (row >= 0) & (starts <= until + _CLOCK)
        later = np.minimum(row + 1, len(self.steps) - 1)  # a call that begins as a step ends lies in the next row
        goes_on = np.asarray([one.record.end for one in calls], np.float64) - until
        first = np.clip(1 - goes_on / np.maximum([one.record.seconds for one in calls], 1e-12), 0.0, 1.0)
        first = np.where((later > row) & (np.abs(self.start[later] - until) <= _CLOCK), first, 1.0)
        for kind in dict.fromkeys((one.name, one.from_parts) for one in calls):
            wanted = np.zeros(len(self.steps))
            mine = np.asarray([(one.name, one.from_parts) == kind for one in calls]) & inside
            np.add.at(wanted, row[mine], (spent * first)[mine])
            np.add.at(wanted, later[mine], (spent * (1 - first))[mine])
            self._take(kind[0], wanted, kind[1])
        for kind in dict.fromkeys((one.name, one.from_parts) for one in found):
            summed = sum(
                one.record.seconds * one.scale
                for one in found
                if one.record.calls > 1 and (one.name, one.from_parts) == kind
            )
            self._take(kind[0], self._spread(summed, kind[1]), kind[1])

    def _recorded(self, metrics: JobMetrics, writers: Collection[tuple[str, str]]) -> list[_Recorded]:
        """Return what was recorded by itself while the rank was in its loop."""
        rank, found = self.rank, []
        for kind, (name, from_parts) in RECORDED.items():
            records = metrics.recorded(kind)
            own = records.of(rank.name)
            kept = sum(one.seconds for one in own)
            scale = max(records.seconds.get(rank.name, kept) / kept, 1.0) if kept > 0 else 1.0
            for one in own:
                args = one.args
                if args.file is not None and args.line is not None and name in (SAVING, LOGGING):
                    self.timed.add((args.file, args.line))
                imported = isinstance(args, TimedCall) and args.imported
                if one.seconds > 0 and rank.start <= one.start <= rank.end and not imported:
                    again = isinstance(args, Compile) and args.again
                    activity = AGAIN if again else LOGGING if flushes(one, writers) else name
                    found.append(_Recorded(one, activity, from_parts, scale))
        return found

    def _own_times(self, calls: Sequence[_Recorded]) -> Floats:
        """Return the seconds of calls without those inside them; evaluation in a callback is evaluation."""
        if not calls:
            return np.zeros(0)
        start = np.asarray([one.start for one in calls], np.float64)
        end = np.asarray([one.record.end for one in calls], np.float64)
        spent = without_inner(start, end)
        rows, called = (
            self.rank.steps[self.rank.steps.mode != TRAIN],
            np.asarray([one.name == CALLBACKS for one in calls]),
        )
        if len(rows) and called.any():
            begin = rows.start / 1e6 - rows.seconds("wait")
            evaluated = Covered.by(begin, np.maximum(rows.end / 1e6, begin)).within(start, end)
            spent = np.where(called, np.maximum(spent - evaluated, 0.0), spent)
        return np.asarray(spent * [one.scale for one in calls])

    @property
    def length(self) -> Floats:
        """Seconds of each row."""
        taken = list(self.taken.values())
        return np.asarray(np.sum([*self.left.values(), *taken], axis=0))

    def _spread(self, seconds: float, from_parts: Sequence[str]) -> Floats:
        """Return the seconds of each row of many short calls, of which only the sum is known."""
        weight = np.zeros(len(self.steps))
        for key in from_parts:  # the first of the parts that hold all of it
            weight = weight + self.left[key]
            if weight.sum() >= seconds:
                break
        total = float(weight.sum())
        return weight * (min(seconds / max(self.rank.scale, 1.0), total) / total) if total > 0 else weight

    def _take_unmatched(self, ranks: Sequence[Rank]) -> None:
        """Take out the time in which another rank makes steps that this one has no counterpart for, and has to wait.

        Ranks that meet make step by step together. If one has fewer batches, a step of it lasts for many of another, and it
        is as many steps behind at the end: one that was late for another reason would have caught up.
        """
        starts, ends = self.start[:-1], self.start[:-1] + self.length[:-1]
        length = ends - starts - self.left[EVALUATION][:-1]  # a rank that evaluates does not wait
        if self.rank.judged is not None or not len(length):
            return
        usual = float(np.median(length))
        best = np.zeros(len(length))
        for other in ranks:
            if other is self.rank or other.judged is not None or other.train_steps <= self.rank.train_steps:
                continue
            others = np.sort(other.steps.end[other.train] / 1e6)
            made = np.searchsorted(others, ends, side="right") - np.searchsorted(others, starts, side="right")
            more = np.where((made > 2) & (length > thresholds.LONG_STEP * usual), made - 1, 0)
            in_step = np.count_nonzero(made > 2) <= thresholds.RARE * len(made)
            if in_step and other.train_steps - self.rank.train_steps >= limits.MAJORITY * more.sum() > 0:
                best = np.maximum(best, np.where(more > 0, np.maximum(length - usual, 0.0), 0.0))
        self._take(UNMATCHED, np.append(best, 0.0), _BESIDE)

    def _take_samples(self, seen: SeenCode) -> None:
        """Take out what samples show of the part that they lie in.

        What is done now and then lies first in rows of which this part is long.
        """
        calling = ("forward", *(() if self.rank.on_device else _CALLING))  # of which the host sees nothing on a GPU
        self._take_edges(seen)
        for keys in ((OUTSIDE, EVALUATION, BETWEEN), *((one,) for one in calling)):
            found = dict[str, float]()
            for one in seen.samples.stacks:
                if one.process == self.rank.name and one.phase in keys and not seen.edge(one):
                    name = seen.activity(one)
                    timed = self.timed if name in (SAVING, LOGGING) else ()
                    if not is_timed(one.places[-1] if one.places else None, timed):
                        found[name] = found.get(name, 0.0) + one.seconds
            whole, sampled = np.sum([self.left[key] for key in keys], axis=0), sum(found.values())
            total, usual = float(whole.sum()), float(np.median(whole))
            beyond = np.where(whole > thresholds.LONG_STEP * usual, whole - usual, 0.0)
            found.pop("", None)
            # beside the phases, samples may count for a neighbouring part: too many of them do not make it shorter
            as_seen = 0.0 if len(keys) == 1 else 1 / max(self.rank.scale, 1.0)
            fits = min(max(total / max(sampled, 1e-12), as_seen), total / max(sum(found.values()), 1e-12))
            for name, seconds in found.items():
                wanted = seconds * fits
                now_and_then = min(wanted / max(float(beyond.sum()), 1e-12), 1.0) if name in NAMED else 0.0
                first = beyond * now_and_then
                rest = whole - first
                more = max(wanted - float(first.sum()), 0.0)
                inside = keys if name in NAMED else tuple(key for key in keys if key != EVALUATION)
                self._take(name, first + rest * (more / max(float(rest.sum()), 1e-12)), inside)

    def _take_edges(self, seen: SeenCode) -> None:
        """Take what lies between the phases and belongs to one of them; rows have one length for all beside the phases."""
        own = [one for one in seen.samples.stacks if one.process == self.rank.name and one.phase == BETWEEN]
        whole = self.left[OUTSIDE] + self.left[BETWEEN]
        known, sampled = self.rank.seconds[BETWEEN] + self.rank.seconds[OUTSIDE], sum(one.seconds for one in own)
        if known <= 0 or sampled <= 0:
            return
        part = self.rank.seconds[BETWEEN] / known / sampled
        for phase in _STEPS:
            spent = sum(one.seconds for one in own if seen.edge(one) == phase)
            self._take(phase, whole * (spent * part), (BETWEEN, OUTSIDE))


@attrs.frozen(eq=False)
class SeenCode:
    """Meaning of samples in lines beside the phases of a step, whose calls no record times.

    Attributes:
        samples: all samples.
        has_device: the job has GPUs, so that copies to them are worth a name.
        loops: file and function of the training loops whose own iterators make their batches; empty if a loader is watched.
        blocked: lines in which JAX launches an operation and waits: hardly any of their time is its Python, and they take
            longer than hundreds of launches.
        has_callbacks: callbacks are timed, so that samples of them are known already.
        training: file and function of the code that runs the phases of steps.
        by_hand: no optimizer was recorded, so that the script may update its parameters itself.
        without_forward: no forward pass was recorded.
        all_compiled: compiled functions run the steps.
    """

    samples: Samples
    has_device: bool = False
    loops: frozenset[tuple[str, str]] = frozenset()
    blocked: frozenset[Place] = frozenset()
    has_callbacks: bool = False
    training: frozenset[tuple[str, str]] = frozenset()
    by_hand: bool = False
    without_forward: bool = False
    all_compiled: bool = False

    @classmethod
    def of(cls, metrics: JobMetrics) -> SeenCode:
        """Return what the samples of a job are read with."""
        stacks, loops = metrics.samples.stacks, frozenset[tuple[str, str]]()
        in_steps = [one.args for one in metrics.recorded(Loop).longest]
        recorded = frozenset((file, function) for one in in_steps for file, _, function in one.frames)
        if not any(rank.has_waits for rank in metrics.ranks):
            phases = _STEPS if any(one.phase in _STEPS for one in stacks) else _SHORT_STEPS
            loops = _functions(one for one in stacks if one.phase in phases) | recorded
        steps = sum(rank.train_steps for rank in metrics.ranks)
        lines: dict[Place, list[float]] = {}
        for one in stacks:
            if one.places and one.phase in BESIDE_THE_PHASES:
                spent = lines.setdefault(one.places[-1], [0.0, 0.0])
                spent[one.leaf == _LAUNCH] += one.seconds
        blocked = frozenset(
            place for place, (python, launch) in lines.items()
            if launch >= limits.MOST * (python + launch) and launch > steps * limits.TINY_STEP_S
        )  # fmt: skip
        training = _functions(one for one in stacks if one.phase in _STEPS) | recorded
        has_callbacks = bool(metrics.recorded(Callback).longest)
        by_hand, forwards = (not any(rank.seconds[key] for rank in metrics.ranks) for key in ("optimizer", "forward"))
        compiled = all(rank.seconds["compiled"] for rank in metrics.ranks)
        return cls(
            metrics.samples, bool(metrics.gpus), loops, blocked, has_callbacks, training, by_hand, forwards, compiled
        )

    def maker(self, one: Sampled) -> Place | None:
        """Return the function from which the loop's header, or the line that calls the model, gets its next batch, if it is in one.

        The loop may be a library's, which calls the script's iterator.
        """
        for caller, callee in zip(one.places, one.places[1:], strict=False):
            if callee.function.endswith((".__iter__", ".__next__")):
                return callee
            if (caller.file, caller.function) not in self.loops:
                continue
            before_model = one.phase in ("outside", "gc") and self.phases_of.get(caller, {}).keys() == {"forward"}
            if before_model or (not one.long and _NEXT_BATCH.search(self.samples.source(caller))):
                return callee
        return None

    def called(self, one: Sampled) -> Place | None:
        """Return the function of the script that a library calls in a phase, if it does: a hook, a closure, a callback.

        The script's own optimizers, and what it differentiates by itself, are the phase.
        """
        if one.phase == "forward":
            return self.module_hook(one)
        runs = _CALLING.get(one.phase)
        if runs is None or len(one.places) <= 1:
            return None
        texts = [self.samples.source(place) for place in one.places]
        at = next(
            (n for pattern in (runs, TRAINS) for n in reversed(range(len(texts))) if pattern.search(texts[n])), -1
        )
        found = one.places[at + 1] if 0 <= at < len(texts) - 1 else None
        return found if found and found.function.rpartition(".")[2] not in ("step", "backward", "forward") else None

    def _runs_forward(self, function: Place) -> bool:
        return (function.file, function.function) in self._passes

    @cached_property
    def _passes(self) -> frozenset[tuple[str, str]]:
        """Functions that run forward passes: a closure, or the step of a trainer's module."""
        return _functions(one for one in self.samples.stacks if one.phase == "forward")

    def activity(self, one: Sampled) -> str:
        """Return the activity of the loop that a stack shows; "" if it shows none.

        What a function prepares that then mostly writes is written as well. In the phases, only callbacks are seen.
        """
        if one.phase in AROUND_THE_LOOP:
            return ""
        if COLLECTIVES.search(one.leaf) or (one.places and _EXCHANGES.search(self.samples.source(one.places[-1]))):
            return TRANSFER  # with the packing of what is exchanged
        if one.phase == "forward":
            return CALLBACKS if self.callback(one) is not None else ""
        if one.phase not in BESIDE_THE_PHASES:
            called = self.called(one)
            if called is None:
                return ""
            if one.phase == "backward" and _UPDATE.search(one.leaf):  # as hooks of parameters do
                return "optimizer"
            return self._own_activity(one) or ("forward" if self._runs_forward(called) else CALLBACKS)
        return self._meaning(one)

    def _meaning(self, one: Sampled) -> str:
        found = self._own_activity(one)
        if found or one.phase == EVALUATION:
            return found
        return next((name for place in one.places if (name := self.writing.get((place.file, place.function)))), "")

    def collected_in(self, activity: str) -> float:
        """Return the part of the time in garbage collections that an activity causes, in whose lines they were seen."""
        seen = [one for one in self.samples.stacks if one.phase == "gc"]
        whole = sum(one.seconds for one in seen)
        return sum(one.seconds for one in seen if self._meaning(one) == activity) / whole if whole > 0 else 0.0

    @cached_property
    def writing(self) -> dict[tuple[str, str], str]:
        """Functions of the script that mostly save or log, each with that activity; none that runs a training's phases."""
        spent: dict[tuple[str, str], dict[str, float]] = {}
        for one in self.samples.stacks:
            if one.phase in BESIDE_THE_PHASES and one.phase != EVALUATION:
                name = self._own_activity(one)
                for function in {(place.file, place.function) for place in one.places} - self.training:
                    own = spent.setdefault(function, {})
                    own[name] = own.get(name, 0.0) + one.seconds
        return {
            function: name
            for function, own in spent.items()
            if (name := max(own, key=own.__getitem__)) in (SAVING, LOGGING)
            and own[name] >= limits.MAJORITY * sum(own.values())
        }

    def _own_activity(self, one: Sampled) -> str:
        """Return the activity that the innermost function of a stack, or its line, shows; "" if it shows none."""
        if self.maker(one) is not None:
            return MAKING
        if _READ.search(one.leaf) or (one.leaf == _LAUNCH and one.places[-1:] and one.places[-1] in self.blocked):
            return RUNNING
        for name, pattern in _LEAVES:
            if pattern.search(one.leaf):
                return name
        if one.places and one.phase in _BESIDE_STEPS and not one.long and one.places[-1] in self.computing:
            return self.computing[one.places[-1]]
        if edge := self.edge(one):
            return edge
        source = self.samples.source(one.places[-1]) if one.places else ""
        if LOOPS.search(source):
            return ""
        if self.has_device and COPIES.search(source):
            return COPYING
        name = next((name for name, pattern in _LINES if pattern.search(source)), "")
        name = name or (CALLBACKS if self.callback(one) is not None else "")
        if name or not self.by_hand or one.phase not in _BESIDE_STEPS:
            return name
        called = any(_OWN_STEP.search(self.samples.source(place)) for place in one.places[:-1])
        return "optimizer" if called or (self.updates and _is_update(source)) else ""

    @cached_property
    def computing(self) -> Mapping[Place, str]:
        """Lines outside the phases that compute, as no call that the hook times does, each with its activity.

        They call functions of torch.nn without a module, or gradients as functions of their inputs: torch.func.grad, vmap
        and torch.autograd.grad are no backward(). A line of which a part was timed as this phase is none of them, though
        samples at its edges may lie outside the phase. Few samples make no such line, and what a line calls counts by
        itself: line and innermost function may be of different moments.
        """
        beside = [one for one in self.samples.stacks if one.places and one.phase in _BESIDE_STEPS and not one.long]
        found: dict[Place, str] = {}
        for phase, pattern in _COMPUTING.items():
            timed = {one.places[-1] for one in self.samples.stacks if one.places and one.phase == phase}
            counts = Counter[Place]()
            for one in beside:
                if pattern.search(one.leaf) and one.places[-1] not in timed:
                    counts[one.places[-1]] += one.count
            if phase == "backward" or self.without_forward:
                found |= {place: phase for place, count in counts.items() if count >= limits.REPEATS}
        return found

    @cached_property
    def phases_of(self) -> Mapping[Place, Counter[str]]:
        """Lines of the code that runs steps → samples of each phase that they call, without what a phase calls back.

        An optimizer that is given a closure runs the whole step in it.
        """
        found: dict[Place, Counter[str]] = defaultdict(Counter)
        for one in self.samples.stacks:
            if one.places and one.phase in _STEPS and (one.phase not in _CALLING or self.called(one) is None):
                inner = (place for place in reversed(one.places) if (place.file, place.function) in self.learning)
                found[next(inner, one.places[-1])][one.phase] += one.count
        return found

    def edge(self, one: Sampled) -> str:
        """Return the phase to which a stack between the phases belongs: that of its line, or the forward pass for a loss."""
        if one.phase == "between" and _UPDATE.search(one.leaf):
            return "optimizer"
        return self.edges.get(one.places[-1], "") if one.phase == "between" and one.places else ""

    @cached_property
    def edges(self) -> Mapping[Place, str]:
        """Lines of which something lies between the phases of a step, each with the phase that it belongs to.

        They call the phase, and what follows on the line is computed from its output; or they compute the loss, as most of
        their samples show. A trainer's line, which calls all phases, is none of them.
        """
        if self.without_forward:
            return {}
        seen, loss = Counter[Place](), Counter[Place]()
        for one in self.samples.stacks:
            if one.places and one.phase == "between":
                seen[one.places[-1]] += one.count
                loss[one.places[-1]] += one.count if _LOSS.search(one.leaf) else 0
        found = {place: "forward" for place in seen if loss[place] > limits.MAJORITY * seen[place]}
        for place, own in self.phases_of.items():
            alone = len(own) == 1 or own.keys() == {"forward", "backward"}
            if place in seen and alone and sum(own.values()) >= seen[place]:
                found[place] = max(own)
        return found

    @cached_property
    def updates(self) -> bool:
        """True if samples would show, and show or a compiled function holds, how a script updates its parameters itself."""
        outer = [one for one in self.samples.stacks if one.places and not one.long and one.phase in BESIDE_THE_PHASES]
        if any(_is_update(self.samples.source(one.places[-1])) for one in outer):
            return True
        return self.all_compiled and sum(one.count for one in outer) >= limits.SAMPLES  # of which some would be there

    def module_hook(self, one: Sampled) -> Place | None:
        """Return the script's function in a forward pass that no line of the script calls, as hooks of modules are called.

        What the script calls is named in the caller's line, or calls what is.
        """
        if one.phase != "forward":
            return None
        for number, (caller, callee) in enumerate(zip(one.places, one.places[1:], strict=False), 1):
            source, names = (
                self.samples.source(caller),
                [place.function.rpartition(".")[2] for place in one.places[number:]],
            )
            if (
                not source
                or TRAINS.search(source)
                or (callee.file, callee.function) in self.learning | self.calling_modules
            ):
                continue
            if not _OF_MODULES.match(names[0]) and not any(
                re.search(rf"\b{re.escape(name)}\b", source) for name in names
            ):
                return callee
        return None

    @cached_property
    def learning(self) -> frozenset[tuple[str, str]]:
        """File and function of the code that runs a step, and not only its forward pass."""
        return _functions(one for one in self.samples.stacks if one.phase in ("backward", "optimizer"))

    @cached_property
    def calling_modules(self) -> frozenset[tuple[str, str]]:
        """File and function of the code that calls modules, as no hook of a module does."""
        return _functions(one for one in self.samples.stacks if _MODULES.match(one.leaf))

    def before_model(self, one: Sampled) -> Sampled:
        """Return a stack up to the line that calls the model, whose code runs in each training step, too."""
        model = self._passes - self.learning
        inner = next((n for n, place in enumerate(one.places) if (place.file, place.function) in model), 0)
        return attrs.evolve(one, places=one.places[:inner]) if inner else one

    def callback(self, one: Sampled) -> Place | None:
        """Return the function of the script that a library calls in a phase, or the method of a trainer's callback, of a stack.

        None if it is in none, or if the callbacks are timed.
        """
        called = None if one.phase in BESIDE_THE_PHASES else self.called(one)
        if called is not None:
            return None if one.phase != "forward" and self._runs_forward(called) else called
        if self.has_callbacks or one.phase not in (*BESIDE_THE_PHASES, "forward"):
            return None
        return next((place for place in one.places if _CALLBACK.search(place.function)), None)

    def writers(self) -> frozenset[tuple[str, str]]:
        """Return the name of the file and the function of lines that write text: to flush it is no checkpoint."""
        places = [one.places[-1] for one in self.samples.stacks if one.places and one.phase in BESIDE_THE_PHASES and self.activity(one) == LOGGING]  # fmt: skip
        return frozenset((one.file.rpartition("/")[2], one.function.rpartition(".")[2]) for one in places)


def _is_update(source: str) -> bool:
    """Return whether a line updates parameters by hand: it reads gradients, and does not only name what they become."""
    return _UPDATES.search(_BEFORE.sub("", source)) is not None


def _functions(stacks: Iterable[Sampled]) -> frozenset[tuple[str, str]]:
    """Return file and function of the lines of some stacks."""
    return frozenset((place.file, place.function) for one in stacks for place in one.places)


def during(activity: str) -> str:
    """Return where a step spends its time, for sentences such as “3 ms a step in the forward pass”."""
    if activity.startswith(PHASE):
        return f"in the {PHASE}“{activity[len(PHASE) :]}”"
    return _DURING.get(activity) or parts.during(activity)


def flushes(one: Record[AtLine], writers: Collection[tuple[str, str]]) -> bool:
    """Return whether a record is the disk that a function waits for after it wrote text."""
    file = (one.args.file or "").rpartition("/")[2]
    return one.name in FLUSHES and (file, (one.args.function or "").rpartition(".")[2]) in writers


def is_timed(place: Place | None, timed: Collection[tuple[str, int]]) -> bool:
    """Return whether a line's call was timed; samples may name files relative to the folder of the job."""
    return place is not None and any(
        place.line == line and (file == place.file or file.endswith(f"/{place.file}")) for file, line in timed
    )


def row_keys() -> tuple[str, ...]:
    """Return the parts of a row: those of an iteration, what is left of its step, and evaluation before it."""
    return (*parts.iteration_keys(), BETWEEN, EVALUATION)


AFTER = np.iinfo(np.int64).max  # in place of the number of a step: the row after the last one


@attrs.frozen(eq=False)
class RankRows:
    """The rows of one rank.

    Attributes:
        index: number of the training step that ends each row, ascending; AFTER for the last row.
        start: seconds since the epoch.
        seconds: shape (parts, rows), in the order of `row_keys()`.
    """

    index: Ints
    start: Floats
    seconds: Floats


def rows_of_rank(rank: Rank, *, warm: bool = True) -> RankRows:
    """Return the rows of one rank, by default without those of the warm-up."""
    keys, iterations = row_keys(), rank.iterations
    rows = np.flatnonzero(rank.train)
    ends = np.nan_to_num(rank.steps.end / 1e6)
    length, usual_s = np.maximum(np.diff(ends[rows]), 0.0), float(np.median(iterations.length))
    whole_step = np.zeros(len(length), np.bool_)
    whole_step[iterations.place - 1] = True
    evaluated = np.diff(rows) > 1
    training = np.where(evaluated, np.minimum(length, usual_s), length)
    training[iterations.place - 1] = np.maximum(np.nan_to_num(iterations.length), 0.0)
    length = np.where(evaluated, np.maximum(length, training), training)
    table, measured = _recorded(rank, training)
    long = np.zeros(len(length), np.bool_)
    long[iterations.place - 1] = rank.stalls.long
    if (spent := table.sum(axis=0)).any():  # parts that were not recorded are as those of the recorded rows around
        stratum = strata(np.maximum.accumulate(ends[rows][:-1]), spent > 0, long)
        shares = np.stack([np.bincount(stratum, part) for part in table]) / np.maximum(
            np.bincount(stratum, spent), 1e-12
        )
        table = np.where(measured, table, shares[:, stratum] * training)
    else:
        table[keys.index(BETWEEN)] = training
    attempt = np.searchsorted(np.asarray(rank.attempts.breaks, np.int64), rows, side="right")
    left_out = Covered.by(*np.reshape(rank.stretches, (-1, 2)).T).within(ends[rows][:-1], ends[rows][1:])
    evaluated &= left_out < limits.MAJORITY * length
    # rows that are neither are steps that are not judged
    keep = (
        (whole_step | evaluated)
        & (attempt[1:] == attempt[:-1])
        & (np.arange(1, len(rows)) >= (thresholds.WARM_UP_STEPS if warm else 0))
    )
    beside = np.where(evaluated, length - training, 0.0)  # evaluation, and what surrounds it
    after = max(rank.end - float(ends[rows[-1]]), 0.0) if rank.seconds[EVALUATION] > 0 else 0.0
    share = min(rank.seconds[EVALUATION] / rank.scale / max(float(beside.sum()) + after, 1e-12), 1.0)
    table[keys.index(EVALUATION)] += beside * share
    table[keys.index(OUTSIDE)] += beside * (1 - share)
    waited = np.where(evaluated, rank.steps.seconds("wait")[rows[1:]] - table[keys.index("wait")], 0.0)
    waited = np.clip(np.nan_to_num(waited), 0.0, table[keys.index(OUTSIDE)])  # for the first batch after an evaluation
    table[keys.index("wait")] += waited
    table[keys.index(OUTSIDE)] -= waited
    last = np.zeros((len(keys), 1))
    last[keys.index(EVALUATION)] = after * share
    index = np.flatnonzero(keep) + 1
    index = np.append(index if rank.judged is None else rank.judged.index[rows][index], AFTER)
    return RankRows(index, ends[rows][np.append(keep, True)], np.concatenate([table[:, keep], last], axis=1))


def _recorded(rank: Rank, length: Floats) -> tuple[Floats, Mask]:
    """Return the recorded parts of each row, cut to its length, and which rows have any."""
    iterations, keys = rank.iterations, row_keys()
    table, measured = np.zeros((len(keys), len(length))), np.zeros(len(length), np.bool_)
    place = iterations.place[iterations.known] - 1
    for number, key in enumerate(parts.iteration_keys()):
        table[number, place] = np.maximum(np.nan_to_num(iterations.of(key)[iterations.known]), 0.0)
    measured[place] = True
    spent = table.sum(axis=0)
    table *= np.where(spent > length, length / np.maximum(spent, 1e-12), 1.0)
    table[keys.index(BETWEEN)] = np.where(measured, np.maximum(length - table.sum(axis=0), 0.0), 0.0)
    return table, measured
