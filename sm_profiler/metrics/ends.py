"""Ends of a job and of each of its ranks: one answer for the terminal, the page, report.json, the fleet and messages."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from sm_profiler.config.launched import Launched, lost_in_open_file
from sm_profiler.formats.process_end import (
    COMPLETED,
    CRASHED,
    END,
    END_CODE,
    END_ERROR,
    END_PLACE,
    END_STEP,
    END_US,
    EXITED,
    INTERRUPTED,
    KILLED,
    OUT_OF_MEMORY,
    RUNNING,
    STOPPED,
    UNKNOWN,
    bounded_line,
    signal_name,
    usual_cause,
)
from sm_profiler.formats.recorded import Hang
from sm_profiler.formatting import duration, plural
from sm_profiler.metrics.attempts import process_name
from sm_profiler.metrics.record_fold import Record

FAILED = frozenset({CRASHED, KILLED, OUT_OF_MEMORY})
SILENT_S = 900.0  # a job whose newest data is older does not count as running
LEFT_S = 60.0  # the same if its processes have left files open, as in a copy of a running job's folder
BEFORE_STEPS = "before its first training step"
UNKNOWN_SIGNAL = "was ended by a signal"  # SIGKILL, or one of native code that gives up
_FLUSH_S = 5.0  # the records of a killed process end up to so long before it does
_TOGETHER_S = 2.0  # processes that were killed within this time were killed by the same hand
_STEPLESS_S = 30.0  # without a step of a rank that goes on; ranks of a healthy job end closer to each other
_DAY_S = 86400.0
_SHOWN_RANKS = 4
_MOST_RANKS = 1_000_000
_CODE = re.compile(r"exit ?code:? ?(-?\d{1,3})\b", re.IGNORECASE)  # -9 of a process ended by a signal
_NO_MEMORY = re.compile(r"out ?of ?memory|exit ?code:? ?137\b", re.IGNORECASE)
# Errors of an allocation that failed: of Python, PyTorch on the host and on a GPU, TensorFlow, XLA and the system.
_NOT_ALLOCATED = re.compile(
    r"^MemoryError\b|out of memory|(can't|cannot|could not|unable to|failed to) allocate|RESOURCE_EXHAUSTED|ResourceExhaustedError",
    re.IGNORECASE,
)
# Errors of ranks whose peer is gone.
_OF_A_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|gloo|nccl|DistBackend|ProcessGroup|TCPStore|peer|socket|"
    r"timed? ?out|horovod|barrier|ChildFailedError|SignalException",
    re.IGNORECASE,
)
_STATUS = {"Completed": COMPLETED, "Failed": CRASHED, "Stopped": STOPPED, "InProgress": RUNNING, "Stopping": RUNNING}


@attrs.frozen
class RankEnd:
    """End of a training process.

    Attributes:
        name: `algo-1-0`.
        state: a state of `formats.process_end`; "" while it runs, or if that is not known.
        exit_code: its exit code, if known.
        error: the exception that ended it: its type and the first line of its message.
        step: number of its training steps.
        counted: the process itself counted them; the last steps of one that was killed are not recorded.
        at: when it ended, or its last step did, seconds since the epoch.
        is_rank: it has a rank, and thus peers.
        place: the innermost line of the script that the exception passed, as `train.py:12`; "" if unknown.
    """

    name: str
    state: str = ""
    exit_code: int | None = None
    error: str = ""
    step: int = 0
    counted: bool = True
    at: float = 0.0
    is_rank: bool = False
    place: str = ""

    @property
    def how(self) -> str:
        """Its end as the rest of a sentence that begins with its name."""
        return f"{self._what} {self._after}{self._why}"

    @property
    def sentence(self) -> str:
        """Its end in a sentence of its own."""
        text = f"{self._after.capitalize()}, {self.name} {self._what}{self._why}"
        return text if text.endswith((".", "!", "?")) else f"{text}."

    @property
    def _after(self) -> str:
        return _after(self.step, counted=self.counted)

    @property
    def raised(self) -> bool:
        """An exception ended it, or its exit code: it was not killed."""
        return self.state == CRASHED or (self.state == OUT_OF_MEMORY and bool(self.error))

    @property
    def _what(self) -> str:
        if self.state == OUT_OF_MEMORY and self.error:
            return "ran out of memory"
        if self.state == KILLED and self.exit_code is None:
            return UNKNOWN_SIGNAL
        if self.state in {KILLED, OUT_OF_MEMORY}:
            return "was killed"
        if self.exit_code and not self.error:
            by_signal = signal_name(self.exit_code)
            return f"was ended by {by_signal}" if by_signal else f"ended with exit code {self.exit_code}"
        return "failed" if self.state == CRASHED else "ended"

    @property
    def _why(self) -> str:
        killed = self.state == OUT_OF_MEMORY and not self.error
        return " because memory ran out" if killed else _because(self.error or usual_cause(self.exit_code), self.place)


@attrs.frozen
class StoredEnd:
    """End of a job in an earlier report: what it was judged by may be gone, as a hidden file is after a copy.

    Attributes:
        state: a state of `formats.process_end`.
        exit_code: exit code of the script or its launcher, if known.
        error: the exception that ended it.
        place: the innermost line of the script that the exception passed.
        last: time of the last record of that report, seconds since the epoch.
    """

    state: str
    exit_code: int | None
    error: str
    place: str
    last: float


@attrs.frozen
class EndFacts:
    """Facts about a job's end besides the records of its processes.

    Attributes:
        run: state of the `sm-profiler run` that wrote the profile; "" if there was none, or it is not known.
        exit_code: its exit code.
        finished: the profile has end markers.
        is_fresh: its newest data is recent.
        first_file_s: seconds until the first open trace file is due to be closed; None if none is open.
        description: the response of DescribeTrainingJob.
        left_open: processes that are gone left files open: they were killed, and the monitor with them.
        silent_s: seconds from the last record to the report; None if no process recorded how it ends, as in old profiles.
        unrecorded: ranks of which there is no record, although others have one.
        stored: its end in an earlier report of the same data.
    """

    run: str = ""
    exit_code: int | None = None
    finished: bool = False
    is_fresh: bool = False
    first_file_s: float | None = None
    description: Mapping[str, Any] = attrs.field(factory=dict)
    left_open: bool = False
    silent_s: float | None = None
    unrecorded: tuple[int, ...] = ()
    stored: StoredEnd | None = None


@attrs.frozen
class JobEnd:
    """End of a job.

    Attributes:
        state: a state of `formats.process_end`, without `exited`.
        exit_code: exit code of the script or its launcher, if known.
        error: the exception that ended it, or the service's reason.
        step: training steps of the rank that did most; None without any.
        counted: that rank itself counted them.
        ranks: its processes.
        dead: the rank that failed while its peers went on.
        short: a rank that ended by itself while its peers went on.
        launched: `sm-profiler run` started it.
        first_file_s: seconds until its first trace file is due to be closed; None if none is open.
        place: the innermost line of the script that the exception passed, as `train.py:12`; "" if unknown.
        lost_s: seconds of data that an open trace file can hold, if the end of a process left one that is lost; else 0.
        silent_s: seconds from its last record to the report, of a job that ended without a word; otherwise None.
        unrecorded: ranks of which there is no record, of a job that did not complete.
    """

    state: str = UNKNOWN
    exit_code: int | None = None
    error: str = ""
    step: int | None = None
    counted: bool = True
    ranks: tuple[RankEnd, ...] = ()
    dead: RankEnd | None = None
    short: RankEnd | None = None
    launched: bool = False
    first_file_s: float | None = None
    place: str = ""
    lost_s: float = 0.0
    silent_s: float | None = None
    unrecorded: tuple[int, ...] = ()

    @property
    def failed(self) -> bool:
        """True if the job did not reach its end, through no wish of its user."""
        return self.state in FAILED

    @property
    def exited(self) -> bool:
        """True if the job failed by an exit code of its own: no signal ended its script, which has closed its files."""
        return self.state == CRASHED and bool(self.exit_code) and not signal_name(self.exit_code)

    @property
    def is_early(self) -> bool:
        """True if the job is over and did not reach its end by itself: it failed, or a signal or a limit stopped it."""
        return self.failed or self.state in {STOPPED, INTERRUPTED}

    @property
    def aftermath_s(self) -> float | None:
        """When the first rank was gone, seconds since the epoch; what follows is no measure of the loop."""
        first = self.dead or self.short
        return first.at if first is not None else None

    @property
    def sentence(self) -> str:
        """Its end in one sentence; "" for a job that is complete without a failed process, or of which nothing is known."""
        last = "" if self.silent_s is None else f"its last sign of life was {_long(self.silent_s)} before this report"
        after = f" {_after(self.step, counted=self.counted)}" if self.step is not None else ""
        by_signal = signal_name(self.exit_code)
        code = f" with exit code {self.exit_code}" if self.exit_code is not None else ""
        by = " by Ctrl-C" if self.error == "KeyboardInterrupt" else f": {self.error}" if self.error else ""
        usual = usual_cause(self.exit_code)
        ended = f"was ended by {by_signal}" if by_signal else f"ended{code}" if code else "failed"
        failed = next((one for one in self.ranks if one.state in FAILED), None)
        text = {
            COMPLETED: f"The job completed, but a process of it failed: {_in_sentence(failed.sentence)}"
            if failed
            else "",
            CRASHED: f"The {self._what} {ended}{after}{_because(self.error or (usual and f'{usual}.'), self.place) or '.'}",
            KILLED: f"The {self._what} {'was killed' if code else UNKNOWN_SIGNAL}{after}{last and f'; {last}'}.",
            UNKNOWN: last and f"The {self._what} ended without a word{after}: {last}.",
            OUT_OF_MEMORY: f"The {self._what} ran out of memory{after}{_because(self.error, self.place) or ': the kernel killed it.'}",
            STOPPED: f"The {self._what} was stopped{self._by_signal}{self._while}{by}.",
            INTERRUPTED: f"The job was interrupted{after} and has not resumed.",
            RUNNING: f"The job is still running: this is the verdict so far{after and f',{after}'}.",
        }.get(self.state, "")
        more = f"{lost_in_open_file(self.lost_s)}." if self.lost_s else ""
        more = " ".join(filter(None, (self._unrecorded, more)))
        if not text or not more:
            return text
        return f"{text if text.endswith(('.', '!', '?')) else f'{text}.'} {more}"

    @property
    def stopped_at(self) -> str:
        """Place of a job that was stopped before its first step, as the end of a sentence; "" for any other."""
        if self.state != STOPPED or self.step != 0:
            return ""
        return f" {BEFORE_STEPS}{f', at {self.place}' if self.place else ''}"

    @property
    def _while(self) -> str:
        return self.stopped_at or (f" {_after(self.step, counted=self.counted)}" if self.step is not None else "")

    @property
    def _by_signal(self) -> str:
        by = signal_name(self.exit_code)
        return f" by {by}" if by and by != "SIGINT" and not self.error else ""

    @property
    def _unrecorded(self) -> str:
        if not self.unrecorded:
            return ""
        shown = ", ".join(map(str, self.unrecorded[:_SHOWN_RANKS]))
        more = " and others" if len(self.unrecorded) > _SHOWN_RANKS else ""
        one = len(self.unrecorded) == 1
        return (
            f"{'Rank' if one else 'Ranks'} {shown}{more} recorded nothing: {'it' if one else 'they'} may have ended before "
            "the others."
        )

    @property
    def _what(self) -> str:
        return "script" if self.launched and len(self.ranks) <= 1 else "job"


def _in_sentence(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"


def _long(seconds: float) -> str:
    return duration(seconds) if seconds < 2 * _DAY_S else f"{seconds / _DAY_S:,.0f} days"


def _because(error: str, place: str) -> str:
    return f": {error}{f' ({place})' if place else ''}" if error else ""


def _after(steps: int, *, counted: bool) -> str:
    if not steps and counted:
        return BEFORE_STEPS
    return f"after {'' if counted else 'at least '}{plural(steps, 'training step')}"


def rank_ends(metadata: Sequence[Mapping[str, Any]], steps: Mapping[str, tuple[int, float]]) -> tuple[RankEnd, ...]:
    """Return how the latest attempt of each process ended.

    Args:
        metadata: records of all processes.
        steps: process → number of its training steps, and end of its loop in seconds since the epoch.
    """
    latest: dict[str, dict[str, Any]] = {}
    for one in metadata:
        name, known = process_name(one), latest.get(process_name(one), {})
        start, before = one.get("start_us") or 0, known.get("start_us") or 0
        if start > before:
            latest[name] = dict(one)
        elif start == before:  # a record with the exit code may come before or after that of the process itself
            by_itself = one.get(END) == EXITED and known.get(END)
            latest[name] = {**one, **known} if by_itself else {**known, **one}
    found = []
    for name in dict.fromkeys((*latest, *steps)):
        one, (count, at) = latest.get(name, {}), steps.get(name, (0, 0.0))
        ended, step, error = one.get(END_US), one.get(END_STEP), bounded_line(_text(one.get(END_ERROR)))
        found.append(
            RankEnd(
                name,
                _without_memory(_text(one.get(END)), error),
                _whole(one.get(END_CODE)),
                error,
                count if step is None else _whole(step) or 0,
                step is not None,
                float(ended) / 1e6 if isinstance(ended, (int, float)) else at,
                one.get("rank") is not None,
                bounded_line(_text(one.get(END_PLACE))),
            )
        )
    return tuple(found)


def of_last_attempt(ranks: Sequence[RankEnd], metadata: Sequence[Mapping[str, Any]]) -> tuple[RankEnd, ...]:
    """Return the ends without those of earlier attempts: how these ended does not matter once the job was started again.

    A process of a later attempt may have another name: another pid, or fewer ranks. An attempt is over when all processes
    have ended; one that begins after that, on a node that had one, belongs to the next. A node whose processes just
    begin late belongs to the same attempt as the others.
    """
    begins: dict[str, float] = {}
    nodes: dict[str, str] = {}
    for one in metadata:
        name, start = process_name(one), one.get("process_us")
        nodes[name] = str(one.get("node"))
        if isinstance(start, (int, float)):
            begins[name] = max(begins.get(name, 0.0), start / 1e6)
    over, latest, seen = 0.0, 0.0, set[str]()
    for rank in sorted(ranks, key=lambda rank: begins.get(rank.name, rank.at if rank.state else 0.0)):
        begin, node = begins.get(rank.name), nodes.get(rank.name, "")
        if begin is not None and begin >= latest and node in seen:
            over = begin
        latest = max(latest, rank.at if rank.state else math.inf)
        seen.add(node)
    return tuple(rank for rank in ranks if not (rank.state and rank.at <= over))


def with_hangs(ranks: Sequence[RankEnd], hangs: Sequence[Record[Hang]]) -> tuple[RankEnd, ...]:
    """Return the ends with the steps that processes had completed when they stopped: the one they stopped in is none."""
    latest: dict[str, Record[Hang]] = {}
    for one in sorted(hangs, key=lambda record: record.end):
        latest[one.process] = one
    stopped = {name: one.args.steps for name, one in latest.items() if one.args.state != "resumed"}
    return tuple(
        one if (steps := stopped.get(one.name)) is None else attrs.evolve(one, step=max(steps, 0), counted=True)
        for one in ranks
    )


def unrecorded_ranks(metadata: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the ranks of which there is no record, if the others agree on how many there are."""
    sizes = {one.get("world_size") for one in metadata if _whole(one.get("rank")) is not None}
    size = _whole(sizes.pop()) if len(sizes) == 1 else None
    if not size or not 0 < size <= _MOST_RANKS:
        return ()
    return tuple(sorted(set(range(size)) - {one.get("rank") for one in metadata}))


def end_of(facts: EndFacts, ranks: Sequence[RankEnd]) -> JobEnd:
    """Return how a job ended."""
    first = _first_failed(ranks)
    state, code = _state(facts, ranks, first), facts.exit_code
    error = place = ""
    status = facts.description.get("TrainingJobStatus")
    if state in FAILED:
        error, place = (first.error, first.place) if first is not None else ("", "")
        if first is not None and state == CRASHED and len(ranks) > 1:
            state = first.state
        if status == "Failed":
            reason = bounded_line(_text(facts.description.get("FailureReason")))
            found = _CODE.search(reason)
            code = _exit_code(int(found[1])) if found else code
            state = OUT_OF_MEMORY if _NO_MEMORY.search(reason) else state
            error = error or reason
        if code is None and first is not None:
            code = first.exit_code
        if facts.stored is not None and facts.stored.state in {state, OUT_OF_MEMORY}:
            code = facts.stored.exit_code if code is None else code
            error, place = (
                (error, place) if error else (bounded_line(facts.stored.error), bounded_line(facts.stored.place))
            )
        state = _without_memory(state, error)
    elif state == STOPPED:
        secondary = _text(facts.description.get("SecondaryStatus"))
        error = (
            secondary if secondary.startswith("Max") else next((one.error for one in ranks if one.state == STOPPED), "")
        )
        stopped = [one for one in ranks if one.state == STOPPED]
        place = next((one.place for one in stopped if one.place), "")
        if code is None:
            code = next((one.exit_code for one in stopped if one.exit_code is not None), None)
    if state == COMPLETED:
        ranks = [_of_completed(one) for one in ranks]
    elif facts.run and state not in {RUNNING, UNKNOWN} and len(ranks) == 1:
        ranks = [attrs.evolve(ranks[0], state=state, exit_code=code)]
    peers = [one for one in ranks if one.is_rank]
    dead = short = None
    if len(peers) + len(facts.unrecorded) > 1 and state in {*FAILED, RUNNING, UNKNOWN}:
        short = _short(peers)
        dead = first if short is None and first in peers and not _left_together(peers) else None
    unrecorded = facts.unrecorded if state in {*FAILED, UNKNOWN} else ()
    if unrecorded and dead is not None and dead.state == CRASHED and (not dead.error or _OF_A_PEER.search(dead.error)):
        dead = None  # a rank without a record may have been the first
    if dead is not None and not dead.step:
        unrecorded = ()  # the launcher ended them before they began
    most = dead or max(ranks, key=lambda one: (one.step, one.counted), default=None)
    return JobEnd(
        state,
        code if state != RUNNING else None,
        error,
        None if most is None else most.step,
        most is None or most.counted or state == RUNNING,
        tuple(attrs.evolve(one, state=COMPLETED) if one.state == EXITED else one for one in ranks),
        dead,
        short,
        bool(facts.run),
        facts.first_file_s if state == RUNNING else None,
        place,
        _lost_seconds(state, ranks, facts),
        facts.silent_s if state == UNKNOWN or (state == KILLED and facts.left_open) else None,
        unrecorded,
    )


def _without_memory(state: str, error: str) -> str:
    """Return the state of what ended with an error: it ran out of memory if an allocation failed."""
    return OUT_OF_MEMORY if state == CRASHED and _NOT_ALLOCATED.search(error) else state


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _lost_seconds(state: str, ranks: Sequence[RankEnd], facts: EndFacts) -> float:
    """Return how much an open file can hold that the end of a training job left behind, with its container."""
    if not facts.description or state in {COMPLETED, RUNNING, UNKNOWN} or all(one.state for one in ranks):
        return 0.0
    return Launched.of(facts.description).rotate_close_s


def _of_completed(rank: RankEnd) -> RankEnd:
    """Return the end of a process of a completed job: one that leaves in C, by `_exit`, looks as if it had been killed."""
    if rank.state in {CRASHED, OUT_OF_MEMORY, STOPPED}:
        return rank
    return attrs.evolve(rank, state="" if rank.state == KILLED else COMPLETED)


def _state(facts: EndFacts, ranks: Sequence[RankEnd], first: RankEnd | None) -> str:
    status = facts.description.get("TrainingJobStatus")
    if facts.run and facts.run != UNKNOWN:
        state = facts.run
    elif status in _STATUS:
        interrupted = facts.description.get("SecondaryStatus") == "Interrupted"
        state = INTERRUPTED if interrupted and status != "Completed" else _STATUS[status]
    elif ranks and all(one.state for one in ranks):
        states = {one.state for one in ranks}
        state = next((one for one in (OUT_OF_MEMORY, KILLED, CRASHED, STOPPED) if one in states), COMPLETED)
        state = first.state if first is not None else state
    elif facts.finished:
        state = COMPLETED
    elif facts.stored is not None:
        state = facts.stored.state
    elif facts.is_fresh and not facts.run:
        state = RUNNING
    else:
        state = first.state if first is not None else UNKNOWN
    return state


def _first_failed(ranks: Sequence[RankEnd]) -> RankEnd | None:
    """Return the rank whose failure made the others fail; None if there is none, or if that is not known."""
    failed = [one for one in ranks if one.state in FAILED]
    if len(ranks) == 1:
        return failed[0] if failed else None
    by_time = sorted(failed, key=lambda one: (one.at, one.name))
    own = [one for one in by_time if one.raised and not _OF_A_PEER.search(one.error)]
    killed = [one for one in by_time if not one.raised]
    if own and not any(one.at < own[0].at - _FLUSH_S for one in killed):
        return own[0]
    if not killed:
        return by_time[0] if by_time else None
    together = [one for one in killed if one.at <= killed[0].at + _TOGETHER_S]
    without_memory = [one for one in together if one.state == OUT_OF_MEMORY]
    if len(together) > 1 and len(without_memory) != 1:
        return None  # all at once
    return (without_memory or together)[0]


def _left_together(peers: Sequence[RankEnd]) -> bool:
    """Return whether all ranks left with the same exit code, after as many steps: none of them is the cause of it."""
    ways = {(one.state, one.exit_code, one.error, one.step) for one in peers}
    return len(ways) == 1 and peers[0].state == CRASHED and not peers[0].error


def _short(peers: Sequence[RankEnd]) -> RankEnd | None:
    """Return a rank that ended by itself while others went on and failed, or have waited for it since."""
    ended = sorted((one for one in peers if one.state in {COMPLETED, EXITED}), key=lambda one: (one.step, one.at))
    if not ended:
        return None
    first = ended[0]
    return first if any(_missed(one, first) for one in peers) else None


def _missed(one: RankEnd, gone: RankEnd) -> bool:
    """Return whether a rank went on after another one had ended by itself, and failed or waits because of that."""
    if one.raised:
        return one.step >= gone.step and one.at >= gone.at - _FLUSH_S and _OF_A_PEER.search(one.error) is not None
    if one.step <= gone.step:  # it may evaluate or save what all have trained
        return False
    return one.at >= gone.at - _FLUSH_S if one.state in FAILED else not one.state and one.at - gone.at > _STEPLESS_S


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
