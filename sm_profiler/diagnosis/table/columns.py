"""Columns of a table of times: roles, parts of a step and units, by their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import attrs

from sm_profiler.diagnosis.table.naming import activity_of, is_activity, words_of
from sm_profiler.errors import SourceError
from sm_profiler.printable import printable

# Column → names under which tables have it, as words, without units and the path of a metric.
NAMES = {
    "rank": ("rank", "worker", "process", "worker id", "global rank", "rank id"),
    "step": (
        "step", "iteration", "iter", "step num", "global step", "training iteration", "num updates", "steps", "global steps",
        "iterations", "update", "batch", "batch idx", "batch index", "epoch",
    ),
    "seconds": (
        "", "duration", "step time", "seconds per step", "time per step", "time per iteration", "elapsed time per iteration",
        "iteration time", "iter time", "train step time", "training step time", "train step timing in", "time this iter", "batch time", "step duration",
        "step latency", "epoch time", "end to end", "dt", "time", "elapsed",
    ),
    "start": ("start", "start ts", "start time", "begin"),
    "end": ("end", "end ts", "end time", "stop"),
    "operation": ("operation", "optype", "op", "op type", "phase", "event"),
    "stage": ("stage", "pp rank", "pipeline stage"),
    "microbatch": ("microbatch", "mb id", "micro batch", "microbatch id"),
}  # fmt: skip
# Where a process runs; together, these columns name the rank if it has none, and the steps occur several times.
PLACES = (
    "hostname", "host", "node", "node id", "node rank", "machine", "device", "device id", "gpu", "gpu id", "local rank",
)  # fmt: skip
TIMED = ("seconds", "start", "end")
TEXTS = ("rank", "operation", "stage")
MOMENTS = ("start", "end")  # which may be a date and time
# Names of the moment at which a step was recorded, for tables that have no times.
RECORDED = ("wall time", "wall", "timestamp", "runtime", "relative time", "time stamp", "datetime")
_UNIT = re.compile(  # from the beginning of a run of separators, so that none is tried from each of its characters
    r"(.*?)(?:^|(?<![\s_.(\[-])[\s_.(\[-]+)(?:(s|secs?|seconds?)|(ms|msecs?|millis|milliseconds?)|(us|usecs?|micros|microseconds?)|(ns|nanos|nanoseconds?))[)\]]?"
)
_SCALES, _UNITS = (1.0, 1e-3, 1e-6, 1e-9), ("s", "ms", "us", "ns")
_TIME = re.compile(r"\b(time|timers?|timings?|times|duration|secs?|seconds?|elapsed|wait|latency|runtime)\b")
_RATE = re.compile(r"\bper\b|\bpct\b|percent|\btotal\b|%")
_PATH = re.compile(r"/| - ")  # of a metric, and of a run
MAX_PARTS = 100
MAX_LISTED, MAX_SHOWN = 12, 40  # columns, and characters of each
NEEDED = (
    "a table of times needs the columns step and seconds (or start and end), and rank if there are several ranks; missing: {missing} "
    "(--columns {names}); a name that ends with _ms is in milliseconds"
)


@attrs.frozen
class Columns:
    """The columns of a table.

    Attributes:
        found: role → column, of those in `NAMES`; only `end`, without `start` and `seconds`, if steps are between moments.
        parts: columns that hold the times of activities within a step.
        places: columns of where a process runs, if none is its rank.
        facts: the others.
    """

    found: Mapping[str, str]
    parts: Sequence[str]
    places: Sequence[str]
    facts: Sequence[str]

    @classmethod
    def of(cls, head: Sequence[str], names: Mapping[str, str], where: str) -> Columns:
        """Return what the columns of a table hold.

        Args:
            head: names of the columns.
            names: role → column, as the user has it.
            where: the table, for messages.

        Raises:
            SourceError: a column that is needed is missing.
        """
        unknown = [key for key in names if key not in NAMES] + [value for value in names.values() if value not in head]
        if unknown:
            raise SourceError(f"{printable(where)}: no column {printable(unknown[0])!r}; found {listed(head)}")
        found = dict(names)
        for role, aliases in NAMES.items():
            if role not in found and (column := _called(head, aliases, role)) is not None:
                found[role] = column
        named = {column for role, column in found.items() if role != "seconds"}
        same = [
            key for key in head if "seconds" in found and key not in named and _plain(key) == _plain(found["seconds"])
        ]
        if len(same) > 1 and "seconds" not in names and len({len(_PATH.split(key)) for key in same}) == 1:
            raise SourceError(
                f"{printable(where)}: {listed(same)} are times of steps; choose one of them: "
                "--columns seconds=NAME; if each is a rank's, write a row for each rank"
            )
        parts = [
            key for key in head if "operation" not in found and "microbatch" not in found and key not in found.values() and is_part(key)
        ][:MAX_PARTS]  # fmt: skip
        if "seconds" not in found and not {*MOMENTS} <= found.keys():
            scaled = [key for key in head if unit_of(key) < 1]
            moment = _called(head, RECORDED, "end")
            if len(scaled) == 1:
                found, parts = {**found, "seconds": scaled[0]}, []
            elif not found.keys() & MOMENTS and not parts[1:] and moment is not None:
                found["end"] = moment
        is_timed = bool(found.keys() & TIMED or parts[1:])
        if missing := [role for role, is_there in (("step", "step" in found), ("seconds", is_timed)) if not is_there]:
            given = ",".join(f"{role}=NAME" for role in missing)
            needed = NEEDED.format(missing=" and ".join(missing), names=given)
            raise SourceError(f"{printable(where)}: {needed}; found {listed(head)}")
        places = [key for key in head if "rank" not in found and key not in found.values() and _plain(key) in PLACES]
        known = {*found.values(), *parts, *places}
        return cls(found, parts, places, [key for key in head if key not in known])

    def told(self, *, moments: bool, divided: bool, placed: bool, facts: Collection[str]) -> str:
        """Return what the columns were read as, and which were not used.

        Args:
            moments: the time is that at which each step was recorded.
            divided: the parts of steps were used.
            placed: the places name the rank.
            facts: further columns that hold numbers.
        """
        roles = {key: "moment" if moments and role in TIMED else role for role, key in self.found.items()}
        roles |= {key: activity_of(_plain(key)) for key in self.parts if divided}
        roles |= dict.fromkeys(self.places if placed else (), "rank")
        scales = {key: unit_of(key) for key in roles if roles[key] not in TEXTS and roles[key] != "step"}
        units = {key: f", in {_UNITS[_SCALES.index(scale)]}" for key, scale in scales.items() if scale < 1}
        about = {key: "" if key == role else f" ({role}{units.get(key, '')})" for key, role in roles.items()}
        compared = [*facts, *(() if divided else self.parts)]
        left = [key for key in (*self.facts, *self.places) if key not in roles and key not in facts]
        groups = {"": [*about], "as evidence only: ": compared, "not used: ": left}
        return "; ".join(f"{label}{listed(keys, about)}" for label, keys in groups.items() if keys)


def is_text(key: str, names: Mapping[str, str]) -> bool:
    """Return whether a column may hold names, or dates and times."""
    return any(key == names.get(role) or _plain(key) in NAMES[role] for role in (*TEXTS, *MOMENTS)) or (
        _plain(key) in (*RECORDED, *PLACES)
    )


def is_part(column: str) -> bool:
    """Return whether a column holds the time of an activity within a step, such as `data_time` or `time/forward (ms)`."""
    words = words_of(column)
    is_time = _TIME.search(words) is not None or _UNIT.fullmatch(column.lower()) is not None
    return is_time and _RATE.search(f"{words} {column}") is None and is_activity(_plain(column))


def unit_of(column: str) -> float:
    """Return the unit of a column in seconds: `duration_ms` and `ms_forward` are in milliseconds."""
    if (found := _UNIT.fullmatch(column.lower())) is not None:
        return next(scale for scale, text in zip(_SCALES, found.groups()[1:], strict=True) if text)
    words = words_of(_PATH.split(column)[-1]).split()
    return next((scale for scale, unit in zip(_SCALES[1:], _UNITS[1:], strict=True) if unit in words), 1.0)


def scale_of(unit: str) -> float | None:
    """Return a unit in seconds: `ms` is a thousandth; None if it is none of time."""
    column = f"x {unit.lower().replace('µ', 'u')}"
    return unit_of(column) if _UNIT.fullmatch(column) else None


def _called(head: Sequence[str], aliases: Sequence[str], role: str) -> str | None:
    """Return the column that has the first of some names; a step with a unit is a time, and one without is a number."""
    plain: dict[str, str] = {}
    for key in sorted(head, key=lambda key: len(_PATH.split(key))):
        name = _plain(key)
        if name == "step" and _UNIT.fullmatch(key.lower()) is not None:
            name = "step time"
        plain.setdefault(name, key)
    return next((plain[alias] for alias in aliases if alias in plain), None)


def _plain(column: str) -> str:
    """Return a column's name as words, without its unit and the path of a metric: `train/step_time_ms` is `step time`."""
    last = _PATH.split(column)[-1]
    found = _UNIT.fullmatch(last.lower())
    return words_of(last[: len(found[1])] if found else last)


def listed(head: Sequence[str], about: Mapping[str, str] | None = None) -> str:
    """Return the names of columns, each with what belongs to it; of many, some."""
    shown = [f"{key[:MAX_SHOWN]}{(about or {}).get(key, '')}" for key in head[:MAX_LISTED]]
    more = [f"{len(head) - MAX_LISTED} more"] if len(head) > MAX_LISTED else []
    return printable(", ".join([*shown, *more]) or "nothing")
