"""The filter of the dataloader window: names that a `MetricsRegex` selects."""

from __future__ import annotations

import re


class NameFilter:
    """Matches names from the start and without regard to case; an empty pattern matches all.

    Attributes:
        pattern: the regular expression.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._regex = re.compile(pattern, re.IGNORECASE)
        self._known: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        """Return whether a name is selected."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = bool(self._regex.match(name))
        return known
