"""What became of a file: the accounting that every reader keeps."""

from __future__ import annotations

from collections import Counter

import attrs

READ, REPAIRED, REFUSED = "read", "repaired", "refused"
LAST_US = 253_402_300_800_000_000  # the year 10000; later times, and times before 1970, are damage


@attrs.define
class Tally:
    """Counts what a reader had to drop from one file, by reason, and what it had to mend."""

    dropped: Counter[str] = attrs.field(factory=Counter)
    mended: list[str] = attrs.field(factory=list)

    def drop(self, reason: str, count: int = 1) -> None:
        """Note that records are lost."""
        if count:
            self.dropped[reason] += count

    def mend(self, what: str) -> None:
        """Note a repair that lost nothing."""
        if what not in self.mended:
            self.mended.append(what)

    def close(self, rows: int) -> Outcome:
        """The outcome of a file of which `rows` rows could be used."""
        lost = self.dropped.total()
        parts = [*self.mended, *(f"{reason}: {count}" for reason, count in self.dropped.most_common())]
        status = READ if not parts else REFUSED if not rows else REPAIRED
        return Outcome(status, lost, "; ".join(parts))


@attrs.frozen
class Outcome:
    """How the reading of a file ended.

    Attributes:
        status: "read", "repaired" or "refused" (nothing could be used).
        lost: records that had to be dropped.
        reason: why, in words; "" where there is nothing to say.
    """

    status: str = READ
    lost: int = 0
    reason: str = ""
