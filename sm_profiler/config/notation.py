"""The notation of one metrics config on the wire, such as `{"StartStep": 5, "NumSteps": 1, }`.

It looks like JSON and is not: a comma trails, None and inf are Python's, and a regex stands in it as it is, its quotes
and backslashes unescaped.  It is data, so it is parsed here and never evaluated.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sm_profiler.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Value = str | int | float | bool | None

# longer than any real config; bounds the search for the quote that ends a string
MAX_LENGTH = 4096

_OPEN = re.compile(r"\s*\{\s*")
_KEY = re.compile(r"""\s*(["'])([A-Za-z_]\w*)\1\s*:\s*""")
_END = re.compile(r"\s*,?\s*\}\s*\Z")
_COMMA = re.compile(r"\s*,\s*")
_WORD = re.compile(r"[^\s,{}\"']+")
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
    """Write a metrics config as the SDK writes it, trailing comma and all; nothing is escaped."""
    return "{" + "".join(f"{_quoted(key)}: {_quoted(value)}, " for key, value in config.items()) + "}"


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def parse_metrics(text: str) -> dict[str, Value]:
    """Parse a metrics config; keys keep their case here, strings are taken as they stand.

    Where an unescaped quote leaves a choice, the first reading in which all that follows makes sense, and no key stands
    twice, is taken.

    Raises:
        ConfigError: the text is not in this notation.
    """
    if len(text) > MAX_LENGTH:
        raise ConfigError(f"longer than {MAX_LENGTH} characters")
    opening = _OPEN.match(text)
    if opening is None:
        raise ConfigError(f"expected {{…}}, found {_shown(text)}")
    parsed = _pairs(text, opening.end(), frozenset(), first=True)
    if parsed is None:
        raise ConfigError(f"cannot be parsed: {_shown(text)}")
    return parsed


def _pairs(text: str, at: int, seen: frozenset[str], *, first: bool) -> dict[str, Value] | None:
    """The pairs from `at` to the closing brace; None where the rest of the text makes no sense."""
    if _END.match(text, at):
        return {}
    if not first:
        comma = _COMMA.match(text, at)
        if comma is None:
            return None
        at = comma.end()
    key = _KEY.match(text, at)
    if key is None or key[2].lower() in seen:
        return None
    for value, end in _values(text, key.end()):
        rest = _pairs(text, end, seen | {key[2].lower()}, first=False)
        if rest is not None:
            return {key[2]: value, **rest}
    return None


def _values(text: str, at: int) -> Iterator[tuple[Value, int]]:
    """The possible readings of the value at `at`, and where each ends."""
    quote = text[at : at + 1]
    if quote in ('"', "'") and quote:
        end = text.find(quote, at + 1)
        while end >= 0:
            if _END.match(text, end + 1) or ((comma := _COMMA.match(text, end + 1)) and _KEY.match(text, comma.end())):
                yield text[at + 1 : end], end + 1
            end = text.find(quote, end + 1)
        return
    word = _WORD.match(text, at)
    if word is None:
        return
    value = _literal(word[0])
    if value is not _NOTHING:
        yield value, word.end()  # type: ignore[misc] # the sentinel is gone


_NOTHING = object()


def _literal(word: str) -> object:
    """None, a boolean, an int or a float; the sentinel where it is neither."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return int(word) if _INTEGER.match(word) else float(word)
    except ValueError:
        return _NOTHING


def _shown(text: str, most: int = 80) -> str:
    return repr(text if len(text) <= most else text[:most] + "…")
