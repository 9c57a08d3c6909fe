"""Match names against a user's regular expression in bounded time.

`re` backtracks, so that a pattern such as `(a+)+$` takes exponential time, and `MetricsRegex` is matched on the training
thread. `NamePattern` follows all alternatives of a pattern at once instead; the time is bounded by the number of its
states times the length of the name. Back-references, look-around, atomic groups and possessive repeats need
backtracking and are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

try:
    from re import _constants as sre  # type: ignore[attr-defined] # `re`'s own parser; public until Python 3.10
    from re import _parser as sre_parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as sre
    import sre_parse as sre_parser

MAX_LENGTH = 256  # characters; the API accepts no longer parameters
MAX_STATES = 500
MAX_NAME = 256  # characters of a name that are compared

_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.UNICODE
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}

# A state accepts one character (a function), holds at a position (an `AT_…` constant), or branches to other states.
_Accept = Callable[[str], bool]
_State = tuple[Any, list[int]]


class NamePattern:
    """A regular expression that is matched from the start of a name, ignoring case.

    Attributes:
        text: the expression.
    """

    def __init__(self, text: str) -> None:
        """Parse an expression in the syntax of `re`.

        Raises:
            ValueError: it is invalid, too long, or cannot be matched in bounded time.
        """
        self.text = text
        if len(text) > MAX_LENGTH:
            raise ValueError(f"longer than {MAX_LENGTH} characters")
        try:
            re.compile(text, re.IGNORECASE)
            tree = sre_parser.parse(text, re.IGNORECASE)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"not a regular expression ({error})") from None
        self._flags = int(tree.state.flags)
        if self._flags & ~_FLAGS:
            raise ValueError("inline flags other than i, m, s, u and x are not supported")
        self._states: list[_State] = []
        try:
            self._start = self._sequence(tree, self._add(None, []))
        except RecursionError:
            raise ValueError("nested too deeply") from None
        self._seen: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        """Return True if the start of a name matches; of a long name, the first 256 characters are compared."""
        name = name[:MAX_NAME]
        known = self._seen.get(name)
        if known is None:
            if len(self._seen) >= MAX_STATES:
                self._seen.clear()
            known = self._seen[name] = self._run(name)
        return known

    def _run(self, name: str) -> bool:
        current = {self._start}
        for at in range(len(name) + 1):
            reached, final = self._reach(current, name, at)
            if final:
                return True
            if at == len(name) or not reached:
                return False
            variants = {form for form in (name[at], name[at].lower(), name[at].upper()) if len(form) == 1}
            current = {
                following
                for number in reached
                for following in self._states[number][1]
                if self._states[number][0](variants)
            }
        return False

    def _reach(self, states: Iterable[int], name: str, at: int) -> tuple[list[int], bool]:
        """Follow branches and positions; return the states that accept a character, and whether the end is reached."""
        waiting, seen, reached = list(states), set(states), []
        while waiting:
            number = waiting.pop()
            kind, following = self._states[number]
            if not following:
                return [], True
            if callable(kind):
                reached.append(number)
            elif kind is None or self._holds(kind, name, at):
                waiting.extend(new for new in following if new not in seen)
                seen.update(following)
        return reached, False

    def _holds(self, kind: Any, name: str, at: int) -> bool:
        if kind in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
            multiline = kind is sre.AT_BEGINNING and self._flags & re.MULTILINE
            return at == 0 or bool(multiline and name[at - 1] == "\n")
        if kind is sre.AT_END_STRING:
            return at == len(name)
        if kind is sre.AT_END:
            rest = name[at:]
            return rest in ("", "\n") or bool(self._flags & re.MULTILINE and rest[0] == "\n")
        before, after = (
            bool(re.fullmatch(r"\w", part)) for part in (name[at - 1 : at] if at else "", name[at : at + 1])
        )
        return bool(name) and (before != after) is (kind is sre.AT_BOUNDARY)

    # --- compilation: every method adds the states of one part that lead to `following`, and returns the first --------

    def _add(self, kind: Any, following: list[int]) -> int:
        if len(self._states) >= MAX_STATES:
            raise ValueError(f"needs more than {MAX_STATES} states")
        self._states.append((kind, following))
        return len(self._states) - 1

    def _sequence(self, parts: Any, following: int) -> int:
        for operation, argument in reversed(list(parts)):
            following = self._part(operation, argument, following)
        return following

    def _part(self, operation: Any, argument: Any, following: int) -> int:
        if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, repeated = argument
            return self._repeat(least, most, repeated, following)
        if operation is sre.BRANCH:
            return self._add(None, [self._sequence(branch, following) for branch in argument[1]])
        if operation is sre.SUBPATTERN:
            _, added, removed, parts = argument
            if added or removed:
                raise ValueError("flags of a group are not supported")
            return self._sequence(parts, following)
        if operation is sre.AT:
            return self._add(argument, [following])
        return self._add(self._accept(operation, argument), [following])

    def _repeat(self, least: int, most: int, parts: Any, following: int) -> int:
        if most is sre.MAXREPEAT:
            loop = self._add(None, [following])
            self._states[loop][1].append(self._sequence(parts, loop))
            following = loop
        else:
            end = following
            for _ in range(most - least):
                following = self._add(None, [end, self._sequence(parts, following)])
        for _ in range(least):
            size = len(self._states)
            following = self._sequence(parts, following)
            if len(self._states) == size:  # an empty part
                break
        return following

    def _accept(self, operation: Any, argument: Any) -> Callable[[set[str]], bool]:
        if operation is sre.ANY:
            excluded = set() if self._flags & re.DOTALL else {"\n"}
            return lambda variants: not variants & excluded
        if operation is sre.LITERAL:
            accept = _literal(argument)
            return lambda variants: any(map(accept, variants))
        if operation is sre.NOT_LITERAL:
            accept = _literal(argument)
            return lambda variants: not any(map(accept, variants))
        if operation is sre.IN:
            members = [_member(*member) for member in argument if member[0] is not sre.NEGATE]
            negated = argument[0][0] is sre.NEGATE
            return lambda variants: any(accept(form) for accept in members for form in variants) is not negated
        raise ValueError(f"{str(operation).lower()} cannot be matched in bounded time")


def _literal(code: int) -> _Accept:
    forms = {chr(code), chr(code).lower(), chr(code).upper()}
    return lambda character: character in forms


def _member(operation: Any, argument: Any) -> _Accept:
    if operation is sre.LITERAL:
        return _literal(argument)
    if operation is sre.RANGE:
        first, last = argument
        return lambda character: first <= ord(character) <= last
    category = re.compile(_CATEGORIES[argument])
    return lambda character: category.fullmatch(character) is not None
