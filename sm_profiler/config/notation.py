"""The notation of one metrics config in a request, such as `{"StartStep": 5, "NumSteps": 1, }`.

It resembles JSON, but has a trailing comma, Python's None and inf, and regular expressions whose quotes and backslashes
are not escaped. It is parsed in one pass, never evaluated.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sm_profiler.config.api import shown
from sm_profiler.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Value = str | int | float | bool | None

MAX_LENGTH = 4096  # characters; far longer than any real config

_OPEN = re.compile(r"\s*\{")
_SPACE = re.compile(r"\s*")
_END = re.compile(r"\s*(?:,\s*)?\}\s*\Z")
_KEY = r"""\s*(["'])([A-Za-z_]\w*)\1\s*:\s*"""
_FIRST_KEY = re.compile(_KEY)
_NEXT_KEY = re.compile("," + _KEY)
_WORD = re.compile(r"[^\s,{}\"']+")
_QUOTE_OR_COMMA = re.compile("[\"',]")
_INTEGER = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*\Z")
_WORDS: dict[str, bool | float | None] = {
    "none": None,
    "null": None,
    "true": True,
    "false": False,
    "inf": float("inf"),
    "+inf": float("inf"),
    "-inf": float("-inf"),
    "infinity": float("inf"),
    "nan": float("nan"),
}


def format_metrics(config: Mapping[str, object]) -> str:
    """Write a metrics config as the SDK does, with a trailing comma and without escapes."""
    return "{" + "".join(f"{_quoted(key)}: {_quoted(value)}, " for key, value in config.items()) + "}"


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def parse_metrics(text: str) -> dict[str, Value]:
    """Parse a metrics config. Keys keep their case, strings are taken literally.

    A string ends at the first quote after which the rest can be parsed and the next key is new.

    Raises:
        ConfigError: the text is not in this notation.
    """
    if len(text) > MAX_LENGTH:
        raise ConfigError(f"longer than {MAX_LENGTH} characters")
    opening = _OPEN.match(text)
    if opening is None:
        raise ConfigError(f"expected {{…}}, found {shown(text)}")
    if _END.match(text, opening.end()):
        return {}
    parsed = _Scan(text).pairs(_FIRST_KEY.match(text, opening.end()))
    if parsed is None:
        raise ConfigError(f"cannot be parsed: {shown(text)}")
    return parsed


class _Scan:
    """Positions at which a value may end, found from right to left so that parsing never has to backtrack.

    Attributes:
        keys: position of a comma → the key after it, if the text can be parsed from there on.
        closing: position of a quote → the next quote of its kind that may end a string.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.keys: dict[int, re.Match[str]] = {}
        self.closing: dict[int, int | None] = {}
        nearest: dict[str, int | None] = {}
        for at in reversed([found.start() for found in _QUOTE_OR_COMMA.finditer(text)]):
            mark = text[at]
            if mark == ",":
                key = _NEXT_KEY.match(text, at)
                if key is not None and self._can_start_value(key.end()):
                    self.keys[at] = key
            else:
                self.closing[at] = nearest.get(mark)
                if self._can_end_value(at + 1):
                    nearest[mark] = at

    def _can_end_value(self, at: int) -> bool:
        return self._next_key(at) is not None or _END.match(self.text, at) is not None

    def _can_start_value(self, at: int) -> bool:
        if at in self.closing:
            return self.closing[at] is not None
        word = _WORD.match(self.text, at)
        return word is not None and _literal(word[0]) is not _NOTHING and self._can_end_value(word.end())

    def _next_key(self, at: int) -> re.Match[str] | None:
        space = _SPACE.match(self.text, at)
        return self.keys.get(space.end()) if space is not None else None

    def pairs(self, key: re.Match[str] | None) -> dict[str, Value] | None:
        """Return the pairs from a key to the closing brace, or None if they cannot be parsed."""
        found: dict[str, Value] = {}
        seen: set[str] = set()
        while key is not None and self._can_start_value(key.end()):
            seen.add(key[2].lower())
            at = key.end()
            end, following = self._value_end(at, seen)
            if end is None:
                return None
            found[key[2]] = self.text[at + 1 : end - 1] if at in self.closing else _literal(self.text[at:end])  # type: ignore[assignment] # not the sentinel
            if following is None:
                return found
            key = following
        return None

    def _value_end(self, at: int, seen: set[str]) -> tuple[int | None, re.Match[str] | None]:
        """Return the end of the value at a position, and the next key; None if the closing brace follows."""
        if at not in self.closing:
            word = _WORD.match(self.text, at)
            end = word.end() if word is not None else at
            following = self._next_key(end)
            return (None if following is not None and following[2].lower() in seen else end), following
        quote = self.closing[at]
        while quote is not None:
            following = self._next_key(quote + 1)
            if following is None or following[2].lower() not in seen:
                return quote + 1, following
            quote = self.closing[quote]
        return None, None


_NOTHING = object()


def _literal(word: str) -> object:
    """Return None, a boolean, an int or a float; the sentinel if the word is none of these."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return int(word) if _INTEGER.match(word) else float(word)
    except ValueError:
        return _NOTHING
