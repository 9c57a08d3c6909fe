"""Tables of times that other tools recorded, and MLPerf's logs, as ledgers."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from sm_profiler import plugins
from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.ledger import MEETING, STEP, TRANSFER, Ledger, RankLedger
from sm_profiler.diagnosis.table.columns import MOMENTS, TEXTS, TIMED, Columns, is_text, listed, scale_of, unit_of
from sm_profiler.diagnosis.table.files import (
    MAX_BYTES,
    SUFFIXES,
    Piece,
    TableFile,
    joined,
    lines,
    read_csv,
    read_json_lines,
    read_parquet,
    stored,
    suffix_of,
    tables_in,
)
from sm_profiler.diagnosis.table.naming import activity_of, is_communication, is_point_to_point
from sm_profiler.diagnosis.table.operations import Operations, build_operations, end_together
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.formats.columns import Category, Floats, Ints, Mask, Numbering
from sm_profiler.formats.kineto_reader import HEAD_BYTES, unpacked_head
from sm_profiler.formatting import natural_key
from sm_profiler.metrics.parts import Covered
from sm_profiler.printable import logger_for, one_line, printable

MAX_ROWS = 20_000_000  # some 2 GB of columns
MAX_FACTS = 100  # other columns
MAX_NAMES = 100_000  # ranks, stages or operations
MAX_CELLS, CELLS_A_ROW = 1 << 22, 8  # activities times steps of all ranks: so many, and so many times the rows
OTHERS = "other operations"
MAX_SECONDS = 1e12  # 30,000 years; sums of as many rows are still exact enough
MIN_SECONDS = 1e-12  # shorter times are 0, so that ratios are finite
# Smaller numbers of a fact are 0, and a column with larger ones is left out, so that squares are finite.
MIN_FACT, MAX_FACT = 1e-100, 1e100
ROUNDING = 1e-9  # of an operation's length; one that ends this much after the next begins does not overlap it
MLLOG = ":::MLLOG"
_MOMENTS = (
    "init_start", "run_start", "run_stop", "eval_start", "eval_stop", "block_start", "block_stop", "epoch_start", "epoch_stop",
)  # fmt: skip
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))? ?(?:Z|([+-]\d\d:?\d\d))?")
_RANK = re.compile(r"rank[\s_-]*(?=\d+$)", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(\d{1,6}) days?[,.]? )?(\d{1,6}):([0-5]\d):([0-5]\d(?:\.\d{1,9})?)", re.ASCII)
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([a-zµ]{1,12})", re.ASCII | re.IGNORECASE)
EPOCH_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))  # moments since the epoch from which on each unit is used


@attrs.frozen(eq=False)
class Table:
    """A ledger read from a table, and how much of it could be read.

    Attributes:
        ledger: the ledger.
        rows: rows that were read.
        lost: rows left out because a number was missing, negative or not finite.
        why: the first reason for which a row was left out.
        filled: steps that single ranks lack and that count as usual.
    """

    ledger: Ledger
    rows: int
    lost: int = 0
    why: str = ""
    filled: int = 0


def is_table(where: str) -> bool:
    """Return whether a source is a table of times or an MLPerf log, by its name and first bytes."""
    if suffix_of(where) in SUFFIXES or tables_in(where):
        return True
    return _is_mllog(where) or _format_of(where) is not None


def _is_mllog(where: str) -> bool:
    path = Path(where)
    if "://" in where or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return MLLOG.encode() in unpacked_head(file.read(HEAD_BYTES))
    except OSError:
        return False


def _format_of(where: str) -> Any:
    """Return the format of another package that reads a source; None if there is none."""
    for name, found in plugins.load(plugins.FORMATS).items():
        try:
            if found.matches(where):
                return found
        except Exception as error:
            logger_for("sm_profiler").warning("sm-profiler: the extension %s failed: %s", name, one_line(error))
    return None


def read_table(where: str | os.PathLike[str], names: Mapping[str, str] | None = None) -> Table:
    """Read a table of times.

    Args:
        where: a CSV, Parquet or JSON lines file, plain or compressed with gzip, or a log of MLPerf's mllog; a path or an s3:// URI.
            Or a folder that holds nothing but tables, one of each rank.
        names: column of `NAMES` → its name in this table.

    Raises:
        SourceError: the file cannot be read, misses a column, or has no usable row.
    """
    name = os.fspath(where)
    if suffix_of(name) not in SUFFIXES and not _is_mllog(name) and (other := _format_of(name)) is not None:
        return _read_with(other, name)
    if ranks := tables_in(name):
        files, left = {}, MAX_BYTES
        for rank, path in ranks.items():
            data = stored(path)
            left -= len(data)
            if left < 0:
                raise SourceError(
                    f"{printable(name)}: its tables have more than {MAX_BYTES >> 20} MiB; cut or aggregate them"
                )
            files[rank] = _opened(data, path, names or {})
        file = joined(files, "")
        has_rank = len(files) == 1 or "rank" in Columns.of(file.head, names or {}, name).found
        return _table(file if has_rank else joined(files, "rank"), name, names or {})
    data = stored(name)
    if suffix_of(name) != ".parquet" and MLLOG.encode() in unpacked_head(data):
        return _mllog(lines(data, name), name)
    return _table(_opened(data, name, names or {}), name, names or {})


def _opened(data: bytes, name: str, names: Mapping[str, str]) -> TableFile:
    if suffix_of(name) == ".parquet":
        return read_parquet(data, name, lambda key: is_text(key, names))
    return (read_json_lines if suffix_of(name) in {".jsonl", ".ndjson"} else read_csv)(data, name)


def _read_with(other: Any, name: str) -> Table:
    try:
        table = other.read(name)
    except ProfilerError:
        raise
    except Exception as error:
        raise SourceError(f"{printable(name)}: cannot be read: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(table, Table):
        raise SourceError(f"{printable(name)}: the extension returned {type(table).__name__}, not a Table")
    return table


def _table(file: TableFile, name: str, names: Mapping[str, str]) -> Table:
    """Turn columns into ledgers."""
    columns = Columns.of(file.head, names, name)
    found = columns.found
    read = _Reader(columns, name)
    for piece in file.pieces:
        read.add(piece)
    rows = read.result()
    count, whole = len(rows.step), not {"operation", "microbatch"} & found.keys()
    has_rank = "rank" in found
    if columns.places and not has_rank:
        pairs = np.unique(np.stack([rows.step, rows.rank]), axis=1)[0]
        has_rank = len(pairs) > (1 + limits.USUAL) * len(np.unique(pairs))  # or else one process has moved
        if not has_rank:
            rows = attrs.evolve(rows, rank_names=["0"], rank=np.zeros(count, np.int64))
    if has_rank and (rows.timed or whole):
        rows = rows.at(_without_copies(rows))
    if whole:
        rows = rows.at(_without_repeated(rows, name, read.about, has_rank=has_rank))
    kept, moments, divided = len(rows.step), False, False
    if whole:
        moments = (len(found.keys() & TIMED) == 1 and "seconds" not in found) or _grow(rows)
        if moments:
            rows = _between_moments(rows, name)
        in_parts = _in_parts(rows, [printable(key)[:40] for key in columns.parts])
        divided, rows = in_parts is not rows, in_parts
    if rows.timed:
        rows = _on_one_clock(rows)
    repeated = count - kept
    why = read.why or ("a step is repeated" if repeated else "")
    ledger, filled = _ledger(rows, name)
    told = columns.told(moments=moments, divided=divided, placed=has_rank and "rank" not in found, facts=read.facts)
    parts_only = not found.keys() & TIMED
    return Table(attrs.evolve(ledger, columns=told, parts_only=parts_only), kept, read.lost + repeated, why, filled)


class _Reader:
    """Numbers and codes of the usable rows so far.

    Attributes:
        lost: rows left out.
        why: the first reason for which one was.
    """

    def __init__(self, columns: Columns, name: str) -> None:
        self.lost, self.why = 0, ""
        found = columns.found
        self._found, self._name, self._count = found, name, 0
        self._places, self._others, self._first = columns.places, columns.facts, ""
        self._scale = {role: unit_of(found[role]) for role in TIMED if role in found}
        self._parts: dict[str, list[Floats]] = {key: [] for key in columns.parts}
        self._numbers: dict[str, list[Floats]] = {key: [] for key in ("step", "start", "seconds")}
        self._texts = {
            role: (Numbering(), list[Ints]()) for role in TEXTS if role in found or (role == "rank" and columns.places)
        }
        self._facts: dict[str, list[Floats]] = {key: [] for key in columns.facts[:MAX_FACTS]}

    def add(self, piece: Piece) -> None:
        """Take rows."""
        self._count += piece.count
        if self._count > MAX_ROWS:
            raise SourceError(
                f"{printable(self._name)}: more than {MAX_ROWS:,} rows; cut the table, or aggregate it first"
            )
        found = self._found
        step = _numbers(piece.column(found["step"]))
        start = self._seconds("start", piece) if "start" in found else np.zeros(piece.count)
        if "end" in found and "start" in found:
            seconds = self._seconds("end", piece) - start
        elif "seconds" in found or "end" in found:
            seconds = self._seconds("seconds" if "seconds" in found else "end", piece)
        else:
            seconds = self._seconds("start", piece) if "start" in found else np.zeros(piece.count)
        parts = {key: np.nan_to_num(_in_seconds(piece.column(key), unit_of(key), _duration)) for key in self._parts}
        if not found.keys() & TIMED:
            seconds = np.sum(list(parts.values()), axis=0)
        texts = {role: self._names(role, piece) for role in self._texts}
        usable = (seconds >= 0) & (seconds <= MAX_SECONDS) & (np.abs(start) <= MAX_SECONDS) & (np.abs(step) < 2**53)
        self.why = self.why or ("" if usable.all() else "a time or step is missing, negative or not finite")
        usable &= self._named(texts.values(), usable)
        at = np.flatnonzero(usable)
        self.lost += piece.count - len(at)
        self._first = self._first or self._of_first(piece)
        for key, values in (("step", step), ("start", start), ("seconds", seconds)):
            self._numbers[key].append(_without_tiny(values[at], MIN_SECONDS) if key == "seconds" else values[at])
        for key, values in parts.items():
            self._parts[key].append(_without_tiny(np.maximum(values[at], 0.0), MIN_SECONDS))
        for role, (numbering, codes) in self._texts.items():
            usable_texts = texts[role] if len(at) == piece.count else [texts[role][row] for row in at.tolist()]
            distinct = dict.fromkeys(usable_texts)
            number = {text: numbering[text if text in numbering else _text(text)] for text in distinct}
            codes.append(np.fromiter(map(number.__getitem__, usable_texts), np.int64, len(at)))
            if len(numbering) > MAX_NAMES:
                raise SourceError(
                    f"{printable(self._name)}: column {printable(found.get(role, role))} has more than {MAX_NAMES:,} different values"
                )
        for key in list(self._facts):
            numbers = _numbers(piece.column(key))[at]
            if (np.abs(numbers) <= MAX_FACT).all():
                self._facts[key].append(_without_tiny(numbers, MIN_FACT))
            else:
                del self._facts[key]

    def _of_first(self, piece: Piece) -> str:
        """Return the times and step of the first row, for messages."""
        shown = [self._found[role] for role in ("step", *TIMED) if role in self._found] if piece.count else []
        return printable(", ".join(f"{key[:40]} {str(piece.column(key)[0])[:40]!r}" for key in shown))

    def _names(self, role: str, piece: Piece) -> list[Any]:
        if role in self._found:
            return list(piece.column(self._found[role]))
        return ["-".join(map(_text, place)) for place in zip(*map(piece.column, self._places), strict=True)]

    def _named(self, texts: Iterable[list[Any]], usable: Mask) -> Mask:
        """Return which rows have names in all columns of texts."""
        named = np.ones(len(usable), np.bool_)
        for column in texts:
            if not {list, dict}.isdisjoint(map(type, column)):
                named &= [not isinstance(value, (list, dict)) for value in column]
        self.why = self.why or ("" if named[usable].all() else "a name is a list or an object")
        return named

    def _seconds(self, role: str, piece: Piece) -> Floats:
        values = piece.column(self._found[role])
        if getattr(getattr(values, "dtype", None), "kind", "") == "M":
            return _since_epoch(np.asarray(values))
        numbers = _in_seconds(values, self._scale[role], _moment if role in MOMENTS else _duration)
        if role in MOMENTS and self._scale[role] == 1.0 and np.isfinite(numbers).any():
            usual = np.nanmedian(np.abs(numbers))
            numbers *= next((unit for least, unit in EPOCH_UNITS if usual >= least), 1.0)
        return numbers

    @property
    def facts(self) -> list[str]:
        """Further columns that hold numbers."""
        return list(self._facts)

    @property
    def about(self) -> str:
        """Text about which column counts the steps, and which are not used; "" if it is `step`, and all are."""
        left = [key for key in self._others if key not in self._facts]
        step = self._found["step"]
        told = [f"{listed([step])} is taken as step"] * (step != "step") + [f"not used: {listed(left)}"] * bool(left)
        return f" ({'; '.join(told)}; --columns step=NAME,rank=NAME names others)" if told else ""

    def result(self) -> _Rows:
        """Return the rows."""
        numbers = {key: np.concatenate(parts) if parts else np.zeros(0) for key, parts in self._numbers.items()}
        if not len(numbers["step"]):
            why = f"each of its {self._count:,} rows has a missing, negative or too large time or step ({self._first})"
            if self._count and not any(scale < 1 for scale in self._scale.values()):
                why += "; times are in seconds, unless the column's name ends with _ms, _us or _ns"
            raise SourceError(
                f"{printable(self._name)}: no usable row: {why if self._count else 'it has only a header'}"
            )
        held = {**self._facts, **self._parts}
        facts = {printable(key)[:40]: np.concatenate(parts) for key, parts in held.items()}
        step = numbers["step"].astype(np.int64)
        epoch = next((np.unique(facts[key], return_inverse=True)[1] for key in facts if key.lower() == "epoch"), None)
        if epoch is not None and (epoch.max() + 1) * (step.max() + 1.0) < 2**53:
            whole = epoch * (step.max() + 1) + step
            step = whole if len(np.unique(step)) < len(np.unique(whole)) else step  # counted anew in each epoch
        return _Rows(
            *self._coded("rank", "0"), *self._coded("stage", ""), *self._coded("operation", STEP),
            step, numbers["start"], numbers["seconds"], facts, timed="start" in self._found and "operation" in self._found,
        )  # fmt: skip

    def _coded(self, role: str, default: str) -> tuple[list[str], Ints]:
        """Return the distinct values as text, numbers in their order, and the index of each row's value."""
        if role not in self._texts:
            return [default], np.zeros(sum(map(len, self._numbers["step"])), np.int64)
        numbering, parts = self._texts[role]
        distinct = sorted(numbering, key=natural_key)
        place = np.empty(len(distinct), np.int64)
        place[[numbering[text] for text in distinct]] = np.arange(len(distinct))
        if role == "rank" and all(map(_RANK.match, distinct)):
            distinct = [_RANK.sub("", text) for text in distinct]
        return distinct, place[np.concatenate(parts)]


def _without_tiny(values: Floats, least: float) -> Floats:
    return np.where(np.abs(values) < least, 0.0, values)


def _numbers(values: Sequence[Any]) -> Floats:
    if hasattr(values, "astype"):
        return np.asarray(values, np.float64)
    kinds = {*map(type, values)}
    if kinds <= {str, float, int} and not (str in kinds and _odd_digits("".join(map(str, values)))):
        with contextlib.suppress(ValueError, OverflowError):  # one that is no number, as in a damaged row
            return np.fromiter(map(float, values), np.float64, len(values))
    return np.asarray([_number(value) for value in values], np.float64)


def _in_seconds(values: Sequence[Any], scale: float, read: Callable[[object], float]) -> Floats:
    """Return times in seconds: numbers in a unit, and texts as a function reads them."""
    numbers = _numbers(values)
    numbers = np.where(np.abs(numbers) <= MAX_FACT, numbers, np.nan) * scale
    for row in np.flatnonzero(np.isnan(numbers)).tolist():
        numbers[row] = read(values[row])
    return numbers


def _odd_digits(text: str) -> bool:
    """Return whether a text has what only Python reads as a number: `1_000`, and digits of other scripts."""
    return "_" in text or not text.isascii()


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return float("nan")
    try:
        return float("nan") if isinstance(value, str) and _odd_digits(value) else float(value)
    except (ValueError, OverflowError):
        return float("nan")


def _since_epoch(moments: Any) -> Floats:
    whole = moments.astype("datetime64[ns]").astype(np.int64)
    return np.where(np.isnat(moments), np.nan, whole / 1e9)


def _moment(value: object) -> float:
    """Return a date and time in seconds since the epoch (without a time zone it is taken as UTC), or a time since the start."""
    found = _MOMENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return _duration(value)
    day, clock, fraction, zone = found.groups()
    zone = f"{zone[:3]}:{zone[-2:]}" if zone else "+00:00"
    try:
        return datetime.fromisoformat(f"{day}T{clock}{zone}").timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        return float("nan")


def _duration(value: object) -> float:
    """Return a time with its unit, or with its hours and minutes, in seconds: `310 ms`, `0:00:01.5`."""
    text = value.strip()[:80] if isinstance(value, str) else ""
    if (found := _CLOCK.fullmatch(text)) is not None:
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if (found := _AMOUNT.fullmatch(text)) is not None and (scale := scale_of(found[2])) is not None:
        return float(found[1]) * scale
    return float("nan")


def _text(value: object) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    return printable(str(value).strip()[:80])[:80]


@attrs.frozen(eq=False)
class _Rows:
    """Usable rows: texts as codes, and numbers; `timed` if they are operations that have a start."""

    rank_names: Sequence[str]
    rank: Ints
    stage_names: Sequence[str]
    stage: Ints
    operations: Sequence[str]
    code: Ints
    step: Ints
    start: Floats
    seconds: Floats
    facts: Mapping[str, Floats]
    timed: bool

    @property
    def end(self) -> Floats:
        return self.start + self.seconds

    def at(self, rows: Ints) -> _Rows:
        columns = {key: getattr(self, key)[rows] for key in ("rank", "stage", "code", "step", "start", "seconds")}
        return attrs.evolve(self, **columns, facts={key: values[rows] for key, values in self.facts.items()})


def _without_repeated(rows: _Rows, name: str, about: str, *, has_rank: bool) -> Ints:
    """Return which rows to keep: of a step that a rank has several times, as after an interruption, the last.

    Raises:
        SourceError: many steps occur several times, so a column that distinguishes the rows is missing. A rank that goes
            through the steps again, instead of having several rows of a step in succession, was restarted.
    """
    order = np.lexsort((np.arange(len(rows.step)), rows.step, rows.rank))
    repeated = np.r_[(np.diff(rows.rank[order]) == 0) & (np.diff(rows.step[order]) == 0), False]
    by_rank = np.argsort(rows.rank, kind="stable")
    in_a_row = ((np.diff(rows.rank[by_rank]) == 0) & (np.diff(rows.step[by_rank]) == 0)).any()
    if repeated.mean() > limits.USUAL and (in_a_row or not has_rank):
        at = order[int(np.flatnonzero(repeated)[0])]
        missing = "operation (what each row is)" if has_rank else "rank, epoch, or operation (what each row is)"
        raise SourceError(
            f"{printable(name)}: many steps occur several times, as step {rows.step[at]}; a column is missing: {missing}{about}; "
            "of a restarted training, keep the rows of the last attempt"
        )
    return np.sort(order[~repeated])


def _without_copies(rows: _Rows) -> Ints:
    """Return which rows to keep if a table holds rows more than once, as tables do that were joined with themselves."""
    keys = (rows.seconds, rows.start, rows.code, rows.step, rows.rank)
    order = np.lexsort(keys)
    copy = np.r_[False, np.all([np.diff(key[order]) == 0 for key in keys], axis=0)]
    return np.sort(order[~copy])


def _grow(rows: _Rows) -> bool:
    """Return whether times only grow from step to step on all ranks: they are those since the start."""
    order = np.lexsort((rows.step, rows.rank))
    same = np.diff(rows.rank[order]) == 0
    return bool(np.count_nonzero(same) >= limits.MIN_STEPS and (np.diff(rows.seconds[order])[same] > 0).all())


def _between_moments(rows: _Rows, name: str) -> _Rows:
    """Return rows with the time since the rank's step before, from the moments at which steps were recorded.

    The first step of a rank has none, so a rank of a single one is left out. If every tenth step was recorded, it has the time of ten, and one that follows earlier counts as if it were as late.
    """
    order = np.lexsort((rows.step, rows.rank))
    since = np.r_[-1.0, np.where(np.diff(rows.rank[order]) == 0, np.diff(rows.seconds[order]), -1.0)]
    steps, kept = np.r_[1, np.diff(rows.step[order])], since >= 0
    since *= np.median(steps[kept]) / np.maximum(steps, 1) if kept.any() else 1.0
    found = rows.at(order[kept])
    ranks, code = np.unique(found.rank, return_inverse=True)
    names = [rows.rank_names[rank] for rank in ranks]
    if not names:
        raise SourceError(f"{printable(name)}: no rank has two steps, between whose moments the time of one lies")
    return attrs.evolve(found, rank_names=names, rank=code, seconds=since[kept], start=np.zeros(int(kept.sum())))


def _in_parts(rows: _Rows, parts: Sequence[str]) -> _Rows:
    """Return a row for each part of a step that has a column, and for the rest of it.

    Columns whose sum is more than the steps are parts of each other; they remain facts.
    """
    spent = sum((rows.facts[key] for key in parts), np.zeros(len(rows.step)))
    if not parts or np.median(spent - (1 + limits.FLOOR) * rows.seconds) > 0:
        return rows
    rest, now = np.maximum(rows.seconds - spent, 0.0), rows.start
    places, starts = [], []
    for seconds in (*(rows.facts[key] for key in parts), rest):
        places.append(np.arange(len(now)) if seconds is rest else np.flatnonzero(seconds > 0))
        starts.append(now[places[-1]])
        now = now + seconds
    each, code = np.concatenate(places), np.repeat(np.arange(len(places)), [len(one) for one in places])
    order = np.lexsort((code, each))
    lengths = [rows.facts[key][at] for key, at in zip(parts, places, strict=False)]
    found = attrs.evolve(
        rows.at(each[order]), operations=(*parts, STEP), code=code[order], start=np.concatenate(starts)[order],
        seconds=np.concatenate([*lengths, rest])[order],
    )  # fmt: skip
    return attrs.evolve(found, facts={key: values for key, values in found.facts.items() if key not in parts})


def _on_one_clock(rows: _Rows) -> _Rows:
    """Return rows whose ranks have the same clock: all of them leave a collective at the same time.

    In a pipeline, and where groups of ranks meet, the ends differ for other reasons; then they are left as they are.
    """
    names = [name for name in rows.operations if is_communication(name)]
    if len(rows.rank_names) < 2 or len(rows.stage_names) > 1 or not names or any(map(is_point_to_point, names)):
        return rows
    at = np.flatnonzero(np.isin(rows.code, [rows.operations.index(name) for name in names]))
    keys, key_of = np.unique(np.stack([rows.code[at], rows.step[at]]), axis=1, return_inverse=True)
    start, end = np.full((2, len(rows.rank_names), keys.shape[1]), np.nan)
    last = np.argsort(rows.start[at], kind="stable")  # of several in a step
    cells = rows.rank[at][last], key_of.ravel()[last]
    start[cells], end[cells] = rows.start[at][last], rows.end[at][last]
    shared = np.isfinite(end).all(axis=0)
    if np.count_nonzero(shared) < limits.MIN_STEPS or end_together(start[:, shared], end[:, shared]):
        return rows
    start, end = start[:, shared], end[:, shared]
    ahead = np.median(end - np.median(end, axis=0), axis=1, keepdims=True)
    return (
        attrs.evolve(rows, start=rows.start - ahead[rows.rank, 0]) if end_together(start - ahead, end - ahead) else rows
    )


def _ledger(rows: _Rows, source: str) -> tuple[Ledger, int]:
    """Return the ledger of some rows, and how many steps of single ranks it lacked."""
    graph, activities = None, _activities(rows)
    if rows.timed:
        graph = build_operations(rows.rank, rows.stage, rows.step, rows.operations, rows.code, rows.start, rows.end)
        all_steps, windows = _windows(rows)
    ranks, pauses = [], _pauses(rows)
    by_rank = np.argsort(rows.rank, kind="stable")
    edges = np.searchsorted(rows.rank[by_rank], np.arange(1, len(rows.rank_names)))
    for each, at in enumerate(np.split(by_rank, edges)):
        steps, of_step = np.unique(rows.step[at], return_inverse=True)
        seconds = (_painted if rows.timed else _sums)(rows, at, of_step, len(steps), activities)
        length = windows[np.searchsorted(all_steps, steps)] if rows.timed else np.sum(list(seconds.values()), axis=0)
        if pauses is not None:
            length = length + pauses[1][np.searchsorted(pauses[0], steps)]
        if graph is not None:
            _divide_communication(seconds, graph, each, steps)
        stage = rows.stage_names[int(np.median(rows.stage[at]))]
        ranks.append(RankLedger.of(rows.rank_names[each], steps, length, seconds, stage=stage))
    whole = tuple(_filled(ranks))
    ledger = Ledger(whole, graph, source=source)
    filled = sum(len(rank.steps) for rank in whole) - sum(len(rank.steps) for rank in ranks)
    return attrs.evolve(ledger, facts=_by_step(ledger, rows)), filled


def _filled(ranks: Sequence[RankLedger]) -> Iterator[RankLedger]:
    """Yield the ranks with the steps between their own that nearly all have: unseen, and as long as those of the others.

    Rows are lost one by one; of hundreds of ranks, hardly any step would be left that all of them have.
    """
    steps, counts = np.unique(np.concatenate([rank.steps for rank in ranks]), return_counts=True)
    if (counts == len(ranks)).all():
        yield from ranks
        return
    wanted = steps[counts >= limits.MOST * len(ranks)]
    length = np.full((len(ranks), len(wanted)), np.nan)
    for row, rank in enumerate(ranks):
        length[row, np.isin(wanted, rank.steps)] = rank.length[np.isin(rank.steps, wanted)]
    for rank, known in zip(ranks, np.isfinite(length), strict=True):
        lacks = np.flatnonzero(~known & (wanted > rank.steps[0]) & (wanted < rank.steps[-1]))
        found = np.r_[rank.steps, wanted[lacks]]
        order = np.argsort(found)
        lengths = np.r_[rank.length, np.nanmedian(length[:, lacks], axis=0)]
        seconds = {key: np.r_[values, np.zeros(len(lacks))][order] for key, values in rank.seconds.items()}
        yield RankLedger.of(rank.name, found[order], lengths[order], seconds, stage=rank.stage)


def _by_step(ledger: Ledger, rows: _Rows) -> dict[str, Floats]:
    """Return the mean of each fact for each rank and common step."""
    steps, shape = ledger.common_steps, (len(ledger.ranks), len(ledger.common_steps))
    if not shape[1]:
        return {}
    column = np.searchsorted(steps, rows.step)
    here = (column < shape[1]) & (steps[np.minimum(column, shape[1] - 1)] == rows.step)
    cell, size = rows.rank[here] * shape[1] + column[here], shape[0] * shape[1]
    count = np.bincount(cell, minlength=size).reshape(shape)
    found = {}
    for key, values in rows.facts.items():
        sums = np.bincount(cell, values[here], size).reshape(shape)
        usual = sums.sum(axis=0) / np.maximum(count.sum(axis=0), 1)  # where a rank's row is missing
        found[key] = np.where(count > 0, sums / np.maximum(count, 1), usual)
    return found


def _pauses(rows: _Rows) -> tuple[Ints, Floats] | None:
    """Return the whole steps with the pause that all ranks make before each: if only some pause, they wait for others."""
    if rows.timed or not rows.start.any():
        return None
    order = np.lexsort((rows.step, rows.rank))
    rank, step, start, end = rows.rank[order], rows.step[order], rows.start[order], rows.end[order]
    follows = np.flatnonzero((np.diff(rank) == 0) & (np.diff(step) > 0)) + 1
    steps = np.unique(step)
    shortest = np.full(len(steps), np.inf)
    np.minimum.at(shortest, np.searchsorted(steps, step[follows]), start[follows] - end[follows - 1])
    return steps, np.where(np.isfinite(shortest), np.maximum(shortest, 0.0), 0.0)


def _windows(rows: _Rows) -> tuple[Ints, Floats]:
    """Return the steps of the job with their lengths: from its first start to its last end, with the pause before it."""
    steps, of_step = np.unique(rows.step, return_inverse=True)
    first, last = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(first, of_step, rows.start)
    np.maximum.at(last, of_step, rows.end)
    length = last - first
    pause = np.r_[0.0, first[1:] - last[:-1]]
    follows = np.r_[False, np.diff(steps) == 1]
    # steps may overlap a little, and tables may count the seconds of each step from 0
    usual = float(np.median(pause[follows])) if follows.any() else -np.inf
    if usual >= -limits.MAJORITY * float(np.median(length)) and (np.diff(first) > 0).all():
        length = np.where(follows, length + pause, length)
    return steps, np.maximum(length, 0.0)


def _activities(rows: _Rows) -> Category:
    """Return the activity of each operation; of too many, the shortest are one together."""
    keys, key_of = np.unique([activity_of(name) for name in rows.operations], return_inverse=True)
    if len(keys) <= CELLS_A_ROW:
        return Category(key_of.astype(np.int32), tuple(keys.tolist()))
    cells = max(MAX_CELLS, CELLS_A_ROW * len(rows.code))
    most = max(cells // np.unique(np.stack([rows.rank, rows.step]), axis=1).shape[1], 1)
    if len(keys) <= most:
        return Category(key_of.astype(np.int32), tuple(keys.tolist()))
    spent = np.bincount(key_of[rows.code], rows.seconds, len(keys))
    longest = np.sort(np.argsort(-spent, kind="stable")[:most])
    place = np.full(len(keys), most)
    place[longest] = np.arange(most)
    return Category(place[key_of].astype(np.int32), (*keys[longest].tolist(), OTHERS))


def _sums(rows: _Rows, at: Ints, of_step: Ints, steps: int, activities: Category) -> dict[str, Floats]:
    keys, mine = activities.values, activities.codes[rows.code[at]].astype(np.int64)
    table = np.bincount(mine * steps + of_step, rows.seconds[at], len(keys) * steps).reshape(len(keys), steps)
    return {keys[key]: table[key] for key in np.unique(mine).tolist()}


def _painted(rows: _Rows, at: Ints, of_step: Ints, steps: int, activities: Category) -> dict[str, Floats]:
    """Return seconds by activity, each moment counted once: computation hides communication, and what began later is inner."""
    order = np.lexsort((rows.start[at], of_step))
    begins, ends, of = rows.start[at[order]], rows.end[at[order]], of_step[order]
    overlaps = (np.diff(of) == 0) & (ends[:-1] - begins[1:] > ROUNDING * (ends - begins)[:-1])
    mixed = np.isin(of_step, of[1:][overlaps])
    table = np.zeros((len(activities.values), steps))
    for name, spent in _sums(rows, at[~mixed], of_step[~mixed], steps, activities).items():
        table[activities.values.index(name)] = spent
    inner = np.asarray([not is_communication(name) for name in rows.operations])[rows.code[at]]
    order = np.lexsort((rows.start[at], inner, of_step))
    order = order[mixed[order]]
    for mine in np.split(order, np.flatnonzero(np.diff(of_step[order])) + 1) if len(order) else ():
        begins, ends = rows.start[at[mine]], rows.end[at[mine]]
        moments = np.unique(np.concatenate([begins, ends]))
        owner = np.full(max(len(moments) - 1, 0), -1)
        places = np.searchsorted(moments, np.stack([begins, ends]))
        _paint(owner, places, activities.codes[rows.code[at[mine]]].astype(np.int64))
        seen = owner >= 0
        table[:, of_step[mine[0]]] = np.bincount(owner[seen], np.diff(moments)[seen], len(table))
    return dict(zip(activities.values, table, strict=True))


def _paint(owner: Ints, places: Ints, keys: Ints) -> None:
    """Set the key of each moment to that of the last interval that covers it.

    Args:
        owner: keys of the moments, to be set.
        places: begins and ends, shape (2, intervals), as indices of moments.
        keys: keys of the intervals.
    """
    begins, ends = places[0].tolist(), places[1].tolist()
    waiting = np.argsort(places[0], kind="stable").tolist()[::-1]
    covering: list[int] = []  # a heap: the last interval, negative, comes first
    for moment in range(len(owner)):
        while waiting and begins[waiting[-1]] <= moment:
            heapq.heappush(covering, -waiting.pop())
        while covering and ends[-covering[0]] <= moment:
            heapq.heappop(covering)
        if covering:
            owner[moment] = keys[-covering[0]]


def _divide_communication(seconds: dict[str, Floats], graph: Operations, rank: int, steps: Ints) -> None:
    """Separate what a rank waits for others from the time that the communication itself takes."""
    if TRANSFER not in seconds:
        return
    mine = [node for node, parties in enumerate(graph.parties) if len(parties) > 1 and rank in parties]
    known = np.isin(steps, graph.steps)
    transfer = seconds[TRANSFER].copy()
    if mine:
        at = np.searchsorted(graph.steps, steps[known])
        transfer[known] = np.minimum(graph.seconds[mine].sum(axis=0)[at], transfer[known])
    seconds[MEETING] = seconds[TRANSFER] - transfer
    seconds[TRANSFER] = transfer


# --- MLPerf ---------------------------------------------------------------------------------------------------------


def _mllog(text: Iterable[str], name: str) -> Table:
    """Read a log of mllog: the steps of `tracked_stats` or else blocks of training, evaluations between them, and the start."""
    moments: dict[str, list[float]] = {key: [] for key in _MOMENTS}
    times, lengths, losses, count, lost = [], [], [], 0, 0
    for line in text:
        _, found, body = line.partition(MLLOG)
        if not found:
            continue
        try:
            event = json.loads(body)
            moment, key, value = float(event["time_ms"]) / 1e3, str(event["key"]), event.get("value")
            spent = _step_time(value) if key == "tracked_stats" else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            lost += 1
            continue
        if not abs(moment) <= MAX_SECONDS:
            lost += 1
            continue
        count += 1
        if key in moments:
            moments[key].append(moment)
        if spent is not None:
            times.append(moment)
            lengths.append(spent)
            losses.append(_loss(value))
    evaluations = _intervals(moments["eval_start"], moments["eval_stop"])
    if times:
        order = np.argsort(times, kind="stable")
        ends, steps = np.asarray(times)[order], np.asarray(lengths)[order]
        begins = np.r_[ends[0] - steps[0], ends[:-1]]
        length = np.maximum(ends - begins, steps)
        evaluation = Covered.by(*evaluations).within(begins, ends)
        facts = {"loss": np.asarray(losses)[order][None, :]} if np.isfinite(losses).all() else {}
    elif evaluations.size:
        begins, ends, evaluation, steps = _blocks(moments, evaluations)
        length, facts = ends - begins, {}
    else:
        raise SourceError(
            f"{printable(name)}: the log has neither step times (tracked_stats with a value such as train_step_time) nor "
            f"evaluations (eval_start and eval_stop): {count} events were read"
        )
    starts, runs = moments["init_start"], moments["run_start"]
    before = max((runs[0] if runs else float(begins[0])) - starts[0], 0.0) if starts else 0.0
    rank = RankLedger.of("0", np.arange(len(ends)), length, {STEP: steps, "evaluation": evaluation})
    return Table(Ledger((rank,), before=before, facts=facts, source=name), count, lost, "not an event of mllog")


def _blocks(moments: Mapping[str, Sequence[float]], evaluations: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return start and end of each block of training with the evaluation that ends it, and the seconds of both.

    Without step times, blocks take the place of steps. The log marks them by block_start and block_stop, or epoch_start and
    epoch_stop; otherwise, what is between two evaluations is one.
    """
    starts = next((moments[key] for key in ("block_start", "epoch_start", "run_start") if moments[key]), [])
    stops = next((moments[key] for key in ("block_stop", "epoch_stop", "run_stop") if moments[key]), [])
    ends = evaluations[1]
    begins = np.r_[min([evaluations[0, 0], *starts]), ends[:-1]]
    if (later := [one for one in stops if one > ends[-1]]) and any(one >= ends[-1] for one in starts):
        begins, ends = np.r_[begins, ends[-1]], np.r_[ends, max(later)]  # a block that no evaluation followed
    evaluation = Covered.by(*evaluations).within(begins, ends)
    trained = _intervals(starts, stops)
    rest = np.maximum(ends - begins - evaluation, 0.0)
    covered = Covered.by(*trained).within(begins, ends) if trained.size and moments["block_start"] else rest
    return begins, ends, evaluation, np.minimum(covered, rest)


def _step_time(value: object) -> float | None:
    if isinstance(value, Mapping):
        for key, spent in value.items():
            if "step_time" in str(key):
                seconds = _number(spent)
                return seconds if 0 <= seconds <= MAX_SECONDS else None
    return None


def _loss(value: Mapping[str, Any]) -> float:
    return next((_number(loss) for key, loss in value.items() if "loss" in str(key)), float("nan"))


def _intervals(starts: Sequence[float], stops: Sequence[float]) -> Floats:
    """Return starts and ends of intervals, each from the first start to the next stop; shape (2, intervals)."""
    found: list[tuple[float, float]] = []
    begun: float | None = None
    for moment, is_stop in sorted([(one, False) for one in starts] + [(one, True) for one in stops]):
        if not is_stop:
            begun = moment if begun is None else begun
        elif begun is not None:
            found.append((begun, moment))
            begun = None
    return np.asarray(found).reshape(-1, 2).T
