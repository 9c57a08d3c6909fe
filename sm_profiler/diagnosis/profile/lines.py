"""The lines of code in which a finding's time is spent, from the stacks that the hook samples."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs
import numpy as np
from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.model import Location
from sm_profiler.metrics.job_metrics import JobMetrics, Rank
from sm_profiler.metrics.sample_fold import Course, Place, Sampled, Samples

MAX_LOCATIONS = 5

# Phases of the hook's samples; all others are declared by the script and lie in the loop.
WAIT, WORKER = "wait", "worker"
START, FIRST_STEPS = "start", "first_steps"  # before the first step, and in first steps that are long
AROUND_THE_LOOP = (START, FIRST_STEPS, "end")
BESIDE_THE_LOOP = (*AROUND_THE_LOOP, "gc", WORKER, "evaluation")
STEPS = ("forward", "backward", "optimizer", "compiled")
IMPORT = "import"  # as innermost function: happens once, in any step
SLEEPS = re.compile(r"\bsleep\(")  # a line in which a thread sleeps
MODULE = "<module>"  # function of lines that are in none
Weights: TypeAlias = Mapping[Place, float]


@attrs.define
class _Line:
    """Samples of one line."""

    seconds: float = 0.0
    count: int = 0
    phases: Counter[str] = attrs.field(factory=Counter)
    processes: Counter[str] = attrs.field(factory=Counter)


@attrs.frozen
class Lines:
    """Time by the innermost of the user's lines."""

    lines: Mapping[Place, _Line]

    @classmethod
    def of(cls, samples: Iterable[Sampled]) -> Lines:
        """Sum up stacks."""
        lines: dict[Place, _Line] = defaultdict(_Line)
        for one in samples:
            if one.places:
                line = lines[one.places[-1]]
                line.seconds += one.seconds
                line.count += one.count
                line.phases[one.phase] += one.seconds  # type: ignore[assignment] # counts of time
                line.processes[one.process] += one.seconds  # type: ignore[assignment] # counts of time
        return cls(lines)

    @property
    def seconds(self) -> float:
        """Time of all lines."""
        return sum(line.seconds for line in self.lines.values())

    def weights(self) -> dict[Place, float]:
        """Return line → seconds."""
        return {place: line.seconds for place, line in self.lines.items()}

    def locations(self, weights: Weights, metrics: JobMetrics, least: float = limits.REPEATS) -> tuple[Location, ...]:
        """Return the lines with the most weight, or none if they were seen less often than `least` times."""
        total = sum(weight for weight in weights.values() if weight > 0)
        seen = sum(self.lines[place].count for place, weight in weights.items() if weight > 0)
        if total <= 0 or seen < least:
            return ()
        ranked = sorted(weights.items(), key=lambda item: (-item[1], item[0].file, item[0].line))[:MAX_LOCATIONS]
        found = []
        for place, weight in ranked:
            if weight / total < limits.SHOWN:
                break
            line = self.lines[place]
            process, most = line.processes.most_common(1)[0]
            alone = len(metrics.ranks) > 1 and most >= limits.MOST * line.seconds
            found.append(
                Location(
                    place.file, place.line, place.function, weight / total, line.phases.most_common(1)[0][0],
                    process if alone else "", metrics.samples.source(place), line.count,
                )
            )  # fmt: skip
        return tuple(found)


@attrs.frozen
class Shown:
    """Lines as the sampler shows them: in the working folder relative to it, and with their source."""

    names: Mapping[str, str]  # name of a file without its folder → as shown; "" if several have it
    samples: Samples

    @classmethod
    def of(cls, samples: Samples) -> Shown:
        """Return how to show the lines of a job."""
        names: dict[str, str] = {}
        for file, _ in samples.sources:
            last = file.rpartition("/")[2]
            names[last] = file if names.get(last, file) == file else ""
        return cls(names, samples)

    def location(self, line: Location) -> Location:
        """Return a line as it is shown."""
        shown = self.names.get(line.file.rpartition("/")[2], "")
        file = shown if shown and line.file.endswith(f"/{shown}") else line.file
        return replace(line, file=file, source=line.source or self.samples.sources.get((file, line.line), ""))


def window_functions(metrics: JobMetrics) -> tuple[Location, ...]:
    """Return the functions of the Python window with the most time."""
    total = sum(function.seconds for function in metrics.functions)
    most = [one for one in metrics.functions[:MAX_LOCATIONS] if total > 0 and one.seconds >= limits.SHOWN * total]
    return tuple(Location(one.file, one.line, one.function, one.seconds / total, "Python window") for one in most)


def function_of(line: Location) -> tuple[str, str]:
    """Return file and function of a line; a line outside of any counts by itself."""
    return line.file, line.function if line.function != MODULE else str(line.line)


def short_place(line: Location) -> str:
    """Return a line as a sentence names it: its function, if it is in one, with file and number."""
    place = f"{line.file.rpartition('/')[2]}:{line.line}"
    return place if line.function.startswith("<") else f"{line.function}() ({place})"


def in_loop(one: Sampled) -> bool:
    """Return whether a sample was taken in the loop."""
    return one.phase not in BESIDE_THE_LOOP


def outside_phases(one: Sampled) -> bool:
    """Return whether a sample was taken in the loop outside the phases of a step and its waits."""
    return in_loop(one) and one.phase not in (WAIT, *STEPS)


def other_code(one: Sampled) -> bool:
    """Return the same, without imports, which happen once."""
    return outside_phases(one) and one.leaf != IMPORT


def error_of_part(found: Iterable[Sampled], whole: Iterable[Sampled]) -> float:
    """Return the standard error of the part of some time that some of its samples show; of none, it is not known at all.

    As if one sample more showed it, and one more did not: few samples that agree are no proof that all others would. A
    sample counts the time since the one before it, so that a few long ones are few, although others are many.
    """
    weights = [(one.seconds, one.count) for one in whole if one.count]
    total = sum(seconds for seconds, _ in weights)
    samples = total**2 / sum(seconds**2 / count for seconds, count in weights) if total > 0 else 0.0
    part = (sum(one.seconds for one in found) * samples / max(total, 1e-12) + 1) / (samples + 2)
    return math.sqrt(max(part * (1 - part), 0.0) / (samples + 2))


def lines_of_samples(metrics: JobMetrics, keep: Callable[[Sampled], bool]) -> tuple[Location, ...]:
    """Return the lines with the most time among some samples of the loop, or of what interrupts it."""
    return _lines_of(metrics, lambda one: one.phase not in AROUND_THE_LOOP and keep(one))


def lines_around_the_loop(metrics: JobMetrics, keep: Callable[[Sampled], bool]) -> tuple[Location, ...]:
    """Return the lines with the most time among some samples from before the loop, or after it."""
    return _lines_of(metrics, lambda one: one.phase in AROUND_THE_LOOP and keep(one))


def _lines_of(metrics: JobMetrics, keep: Callable[[Sampled], bool]) -> tuple[Location, ...]:
    lines = Lines.of(one for one in metrics.samples.stacks if keep(one))
    return lines.locations(lines.weights(), metrics)


def lines_of_phase(metrics: JobMetrics, *names: str) -> tuple[Location, ...]:
    """Return the lines with the most time in some phases; these are timed, so that one sample is enough to show where."""
    lines = Lines.of(one for one in metrics.samples.stacks if one.phase in names)
    return lines.locations(lines.weights(), metrics, least=1)


def lines_of_long_steps(metrics: JobMetrics) -> tuple[Location, ...]:
    """Return the lines on which long steps spend more than a usual step does."""
    stalled = [rank for rank in metrics.ranks if rank.stalls.count]
    if not stalled:
        return ()
    worst = max(stalled, key=lambda rank: rank.stall_share)
    stacks = [one for one in metrics.samples.stacks if one.process in {rank.name for rank in stalled}]
    in_part = [one for one in stacks if _is_in(one, worst.stalls.where)]
    searched = [in_part, [one for one in stacks if in_loop(one)]]
    if worst.stalls.where == "backward":  # whose stack has one line: the model's lines show what it works through
        searched.insert(0, [one for one in stacks if one.phase == "forward"])
    for chosen in searched:
        lines, found = _excess(chosen, worst)
        if located := lines.locations(found, metrics):
            return located
    return ()


def _is_in(one: Sampled, part: str) -> bool:
    if part == "outside":  # of an iteration: also what lies between the phases of its step
        return outside_phases(one)
    return one.phase == part or (part == WAIT and one.phase == WORKER)


def _excess(samples: list[Sampled], rank: Rank) -> tuple[Lines, Weights]:
    """Return the time by line in long steps beyond what a usual step spends there.

    A wait for workers is what its workers did, not the line that waits.
    """
    if any(one.phase == WORKER and one.long for one in samples):
        samples = [one for one in samples if one.phase != WAIT]
    long, usual = (Lines.of(one for one in samples if one.long is kind) for kind in (True, False))
    expected = rank.stalls.median / rank.stalls.typical if rank.stalls.typical > 0 else 0.0
    scale = long.seconds * min(expected, 1.0) / usual.seconds if usual.seconds > 0 else 0.0
    spent = usual.weights()
    return long, {place: seconds - scale * spent.get(place, 0.0) for place, seconds in long.weights().items()}


def lines_since(metrics: JobMetrics, rank: Rank, moment: float, part: str) -> tuple[Location, ...]:
    """Return the lines on which a rank's steps spend more time from a moment on than before it.

    Lines that grew by less than their samples vary do not count, unless the growth of their part was timed: then one of
    its lines grew, and those with the most time are the likeliest.

    Args:
        metrics: the job in numbers.
        rank: the rank.
        moment: seconds since the epoch.
        part: the part of a step that grew, in which alone they lie if any do; "" if several did.
    """
    course, starts = metrics.samples.course.get(rank.name), rank.iterations.start
    if course is None:
        return ()
    before, after = ((rank.start, moment), (moment, rank.end))
    steps = [max(int(((starts >= first) & (starts < last)).sum()), 1) for first, last in (before, after)]
    early, late = (list(_sampled(course, rank, *span)) for span in (before, after))
    if inside := [one for one in late if _is_in(one, part)]:
        early, late = [one for one in early if _is_in(one, part)], inside
    if any(one.phase == WORKER for one in late):  # a wait for workers is what its workers did
        late = [one for one in late if one.phase != WAIT]
    usual, lines = Lines.of(early).lines, Lines.of(late)
    longer, surely = steps[1] / steps[0], dict[Place, float]()
    for place, line in lines.lines.items():
        own = usual.get(place, _Line())
        each, error = line.seconds / line.count, math.sqrt(line.count + own.count * longer**2)
        if (more := line.seconds - own.seconds * longer) > limits.SURELY * error * each:
            surely[place] = more
    return lines.locations(surely, metrics) or (lines.locations(lines.weights(), metrics) if inside else ())


def _sampled(course: Course, rank: Rank, start: float, end: float) -> Iterator[Sampled]:
    """Yield the samples of a rank's lines in its loop between two moments."""
    for phase, place, seconds, count in course.within(start, end):
        one = Sampled(rank.name, phase, long=False, places=(place,), leaf="", seconds=seconds, count=count)
        if in_loop(one) or phase == WORKER:
            yield one


def lines_of_collections(metrics: JobMetrics) -> tuple[Location, ...]:
    """Return the lines that caused collections; each was recorded, so that one is enough."""
    lines = Lines.of(one for one in metrics.samples.stacks if one.phase == "gc")
    return lines.locations(lines.weights(), metrics, least=1)


def lines_of_rank(metrics: JobMetrics, name: str) -> tuple[Location, ...]:
    """Return the lines on which a rank spends more of its loop than the others do."""
    found = _beyond_others(metrics, name)
    return found[0][name].locations(found[1], metrics) if found else ()


def sleeps_beyond_others(metrics: JobMetrics, name: str) -> bool:
    """Return whether a rank sleeps for most of what it spends on its lines beyond the others."""
    found = _beyond_others(metrics, name)
    excess = {place: spent for place, spent in (found[1] if found else {}).items() if spent > 0}
    sleeps = sum(spent for place, spent in excess.items() if SLEEPS.search(metrics.samples.source(place)))
    return sleeps > 0 and sleeps >= limits.MAJORITY * sum(excess.values())


def _beyond_others(metrics: JobMetrics, name: str) -> tuple[dict[str, Lines], Weights] | None:
    """Return the lines of each rank, and what one spends on each beyond the others, as a share of its loop."""
    loops = {rank.name: rank.loop for rank in metrics.ranks if rank.loop > 0}
    if name not in loops or len(loops) <= 1:
        return None
    by_rank = {
        rank: Lines.of(one for one in metrics.samples.stacks if one.process == rank and (in_loop(one) or one.phase == WORKER))
        for rank in loops
    }  # fmt: skip
    shares = {rank: {place: spent / loops[rank] for place, spent in lines.weights().items()} for rank, lines in by_rank.items()}  # fmt: skip
    own = shares.pop(name)
    excess = {place: share - float(np.median([other.get(place, 0.0) for other in shares.values()])) for place, share in own.items()}  # fmt: skip
    return by_rank, excess
