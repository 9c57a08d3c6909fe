"""Accounting of what readers could use of each file, and the limits that files must keep."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

import attrs

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_BETWEEN = re.compile(r"[\s,\[\]]*")
# The next record after a damaged one begins on a new line, or after the end of another object. Neither pattern
# can match the same blanks from two starting points, which would take quadratic time.
_RESTART = re.compile(r"\n[^\S\n]*(?=\{)|\}\s*,\s*(?=\{)")
# Raw line breaks inside strings are accepted and become blanks, as they mean nothing outside of strings.
_DECODER = json.JSONDecoder(strict=False)
_BREAKS = str.maketrans("\t\r\n", "   ")
_BROKEN_LINE = re.compile(r"[^ \t\r\n,\[\]][^\n]*")
_BROKEN_LINE_AT_END = re.compile(r"[^ \t\r\n,\[\]}][^\n]*")  # there, braces close the object around the records
_BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_BORDER_TRIES = 64  # closing braces inspected for borders between records
_BORDERS = 4  # borders tried
_WINDOW = 1024  # characters in which the end of an object is sought first
_LONGEST_WORD = 16  # an error so near the end of a window may be due to its end
_FREE_OBJECTS, _BYTES_AN_OBJECT = 1000, 16  # an event has at least as many bytes
_MAX_RESCANS = 4  # lengths of the text that failed attempts may read in total

READ, REPAIRED, REFUSED = "read", "repaired", "refused"
LAST_US = 253_402_300_800_000_000  # the year 10000; later times, and times before 1970, are damage
MAX_FILE_BYTES = 4 << 30  # larger files, unpacked or not, are not read to their end
CHUNK_BYTES = 4 << 20  # records of so many bytes exist as Python objects at the same time
MAX_RECORD_BYTES = 64 << 20  # of a file larger than a chunk: what is longer is damage (a sparse file, for example)
# A compressed file may unpack to so much, or to so many times its own size: traces of profilers compress 10 to 30 times.
UNPACKED_BYTES, UNPACKED_TIMES = 16 << 20, 64
# Events of a file, and different names and arguments, by its size as it is stored: each takes more memory than bytes.
FREE_EVENTS, BYTES_AN_EVENT = 1 << 19, 4
FREE_TEXTS, BYTES_A_TEXT = 1 << 17, 8


def clean(data: bytes | bytearray, tally: Tally) -> str:
    """Return text with invalid UTF-8 and raw control characters replaced, which costs no record."""
    data = data.removeprefix(BYTE_ORDER_MARK)
    cleaned = _CONTROL.sub(b" ", data)
    if cleaned != data:
        tally.mend("control characters replaced")
    try:
        return cleaned.decode()
    except UnicodeDecodeError:
        tally.mend("invalid UTF-8 replaced")
        return cleaned.decode(errors="replace")


def objects(text: str, tally: Tally) -> Iterator[str]:
    """Yield the JSON text of each whole object in order, without line breaks.

    Text between objects is counted as lost: one record per line if the file has one record per line, else one per gap.
    If most of the text is objects that do not close, which no writer leaves behind, the rest of it is counted as lost.
    """
    by_line = "\n{" in text or "\n" not in text.strip()
    budget = _MAX_RESCANS * (len(text) + 1)
    room = _FREE_OBJECTS + len(text) // _BYTES_AN_OBJECT
    at = _after_blanks(text, 0)
    while at < len(text):
        end, read = _object_end(text, at) if text[at] == "{" else (None, 0)
        room -= 1
        if room < 0:  # no writer has so many objects in so little text
            end, budget = None, 0
        if end is not None:
            yield text[at:end].translate(_BREAKS)
        else:
            budget -= read
            restart = _RESTART.search(text, at) if budget > 0 else None
            end = restart.end() if restart else len(text)
            broken = sum(1 for _ in (_BROKEN_LINE if restart else _BROKEN_LINE_AT_END).finditer(text, at, end))
            reason = "damaged" if restart or budget <= 0 else "cut off"
            tally.drop(reason, broken if by_line else min(broken, 1))
        at = _after_blanks(text, end)


def borders(data: bytes | bytearray, start: int, end: int) -> list[tuple[int, int]]:
    """Return likely borders between two records in a part of the data, the last first: where a record ends and the next begins.

    A border may be inside a string, so the caller tries the next if the text before it cannot be decoded.
    """
    found: list[tuple[int, int]] = []
    brace = end
    for _ in range(_BORDER_TRIES):
        brace = data.rfind(b"}", start, brace)
        if brace < 0 or len(found) == _BORDERS:
            break
        if border := _BORDER.match(data, brace):
            found.append((brace + 1, border.end()))
    return found


def _after_blanks(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


def _object_end(text: str, at: int) -> tuple[int | None, int]:
    """Return the end of the object that begins at `at`, or None, and how many characters a failed attempt read."""
    size, read = _WINDOW, 0
    while True:
        # An error counts the lines before it, so that it must not be given all of the text.
        window = text[at : at + size]
        try:
            return at + _DECODER.raw_decode(window)[1], 0
        except json.JSONDecodeError as error:
            may_go_on = error.msg.startswith("Unterminated") or error.pos >= len(window) - _LONGEST_WORD
            read += len(window) if may_go_on else error.pos
        except (ValueError, RecursionError):
            may_go_on = False
            read += len(window)
        if not may_go_on or at + size >= len(text):
            return None, read
        size *= 4


def most_events(stored: int) -> int:
    """Return how many events are read of a file of so many bytes."""
    return FREE_EVENTS + stored // BYTES_AN_EVENT


def most_texts(stored: int) -> int:
    """Return how many different names and arguments are read of a file of so many bytes."""
    return FREE_TEXTS + stored // BYTES_A_TEXT


@attrs.define
class Tally:
    """Count of the records dropped from one file, by reason, and list of the repairs."""

    dropped: Counter[str] = attrs.field(factory=Counter)
    mended: list[str] = attrs.field(factory=list)

    def drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] += count

    def mend(self, what: str) -> None:
        """Record a repair that lost nothing."""
        if what not in self.mended:
            self.mended.append(what)

    def add(self, other: Tally) -> None:
        """Add the counts and repairs of another part of the file."""
        self.dropped.update(other.dropped)
        for what in other.mended:
            self.mend(what)

    def close(self, rows: int) -> Outcome:
        """Return the outcome of a file of which `rows` rows could be used."""
        lost = self.dropped.total()
        parts = [*self.mended, *(f"{reason}: {count}" for reason, count in self.dropped.most_common())]
        status = READ if not parts else REFUSED if not rows else REPAIRED
        return Outcome(status, lost, "; ".join(parts))


@attrs.frozen
class Outcome:
    """Result of reading a file.

    Attributes:
        status: "read", "repaired" or "refused" (nothing could be used).
        lost: number of dropped records.
        reason: explanation as text; "" for a file without faults.
    """

    status: str = READ
    lost: int = 0
    reason: str = ""
