"""The seconds that a repair would save, and how far its model may be off."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats


@attrs.frozen(eq=False)
class Claim:
    """Saving of one repair by its model.

    Attributes:
        seconds: saved in each row of the loop's table.
        low, high: factors of the saving if the model's assumptions fail to one side; low <= 1 <= high.
        parts: parts of the loop that the seconds are taken from, in this order; none: from all in proportion.
        strict: take them from these parts only.
    """

    seconds: Floats
    low: float = 1.0
    high: float = 1.0
    parts: tuple[str, ...] = ()
    strict: bool = False

    def at_most(self, seconds: float) -> Claim:
        """Return the claim with no more seconds in all than these, in any case."""
        total = float(self.seconds.sum())
        if total <= 0 or total * self.high <= seconds:
            return self
        part = min(seconds / total, 1.0)
        value = total * part
        low = min(self.low * total / value, 1.0) if value > 0 else 1.0
        return attrs.evolve(
            self, seconds=self.seconds * part, low=low, high=max(seconds / value, 1.0) if value > 0 else 1.0
        )

    @classmethod
    def of_scenarios(cls, scenarios: Sequence[Floats], parts: tuple[str, ...]) -> Claim:
        """Return the claim of a model's scenarios: what is saved at least, usually, and at most, in these parts only."""
        low, value, high = (np.maximum(one, 0.0) for one in scenarios)
        total = float(value.sum())
        if total <= 0:
            return cls(value, parts=parts, strict=True)
        return cls(value, min(float(low.sum()) / total, 1.0), max(float(high.sum()) / total, 1.0), parts, strict=True)
