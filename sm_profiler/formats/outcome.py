"""Accounting of what readers could use of each file, and the limits that files must keep."""

from __future__ import annotations

from collections import Counter

import attrs

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
        """Count lost records."""
        if count:
            self.dropped[reason] += count

    def mend(self, what: str) -> None:
        """Note a repair that lost nothing."""
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
