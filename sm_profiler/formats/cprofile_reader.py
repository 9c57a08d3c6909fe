"""Reader of the files that `cProfile.Profile.dump_stats` writes.

They are marshal data, and Python's own reader crashes or exhausts memory on hostile data. This one reads only what
statistics consist of:

    {(file, line, function): (primitive calls, calls, own time, cumulative time, callers), …}

where callers is `{(file, line, function): (calls, primitive calls, own time, cumulative time), …}`. It does not recurse,
takes time and memory proportional to the size of the file, and rejects everything else. References, which marshal uses
for repeated objects, may only point to names, numbers and tuples of them.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from sm_profiler.printable import printable

Function = tuple[str, int, str]
"""File, line and name of a function; ("~", 0, name) for a built-in one."""
Callers = dict[Function, tuple[int, int, float, float]]
Statistics = dict[Function, tuple[int, int, float, float, Callers]]

MAX_BYTES = 64 << 20  # a statistic of ten thousand functions takes about 3 MB
MAX_DIGITS = 5  # of 15 bits each, in a long integer
_MAX_INT = 1 << 63

_REFERABLE = 0x80  # flag of a type: later references may point to the object
_NULL, _TUPLE, _SMALL_TUPLE, _DICT, _REFERENCE = b"0(){r"
_INT, _INT64, _LONG, _FLOAT = b"iIlg"
_SHORT_TEXTS = frozenset(b"zZ")
_LONG_TEXTS = frozenset(b"aAut")
_UNFINISHED: Final = object()  # takes the place of an object that must not be referred to

_int32 = struct.Struct("<i").unpack_from
_int64 = struct.Struct("<q").unpack_from
_float64 = struct.Struct("<d").unpack_from


class DamagedStatisticsError(ValueError):
    """The data is not a statistics file of cProfile."""


def read_statistics(data: bytes) -> Statistics:
    """Return the statistics in the contents of a file; text that cannot be printed is escaped.

    Raises:
        DamagedStatisticsError: the data contains something else, or ends early.
    """
    try:
        return _Reader(data).statistics()
    except (IndexError, struct.error) as error:
        raise DamagedStatisticsError("the data ends early") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.objects: list[Any] = []  # by reference number

    def statistics(self) -> Statistics:
        found: Statistics = {}
        self._expect_dict()
        while (function := self._function()) is not None:
            found[function] = self._figures()
        if self.at != len(self.data):
            raise DamagedStatisticsError("the data continues after its end")
        return found

    def _figures(self) -> tuple[int, int, float, float, Callers]:
        """Read what belongs to a function."""
        if self._container() != 5:  # four numbers and the callers
            raise DamagedStatisticsError("figures of a function were expected")
        number = self._number
        figures = number(), number(), number(), number()
        callers: Callers = {}
        self._expect_dict()
        while (caller := self._function()) is not None:
            callers[caller] = self._caller_figures()
        return (*figures, callers)

    def _function(self) -> Function | None:
        """Read the key of a dictionary; None at its end."""
        if self.data[self.at] == _NULL:
            self.at += 1
            return None
        function = self._value()
        if type(function) is tuple and len(function) == 3:  # file, line and name
            file, line, name = function
            if type(file) is str and type(line) is int and type(name) is str:
                return function
        raise DamagedStatisticsError("a function was expected")

    def _caller_figures(self) -> tuple[int, int, float, float]:
        figures = self._value()
        if type(figures) is tuple and len(figures) == 4:  # four numbers
            for figure in figures:
                if type(figure) is str:
                    break
            else:
                return figures
        raise DamagedStatisticsError("figures of a caller were expected")

    def _number(self) -> Any:
        number = self._scalar()
        if type(number) is int or type(number) is float:
            return number
        raise DamagedStatisticsError("a number was expected")

    def _expect_dict(self) -> None:
        kind = self.data[self.at]
        self.at += 1
        if kind & ~_REFERABLE != _DICT:
            raise DamagedStatisticsError("a dictionary was expected")
        if kind & _REFERABLE:
            self.objects.append(_UNFINISHED)

    def _container(self) -> int:
        """Read the start of a tuple that nothing may refer to; return its length."""
        kind = self.data[self.at]
        if kind & _REFERABLE:
            self.objects.append(_UNFINISHED)
        return self._length(kind & ~_REFERABLE)

    def _length(self, kind: int) -> int:
        at = self.at
        if kind == _SMALL_TUPLE:
            self.at = at + 2
            return self.data[at + 1]
        if kind == _TUPLE:
            self.at = at + 5
            length: int = _int32(self.data, at + 1)[0]
            return length
        raise DamagedStatisticsError("a tuple was expected")

    def _value(self) -> Any:
        """Read a text, a number, or a tuple of these."""
        kind = self.data[self.at] & ~_REFERABLE
        if kind not in {_SMALL_TUPLE, _TUPLE}:
            return self._scalar()
        number = -1
        if self.data[self.at] & _REFERABLE:
            number = len(self.objects)
            self.objects.append(_UNFINISHED)
        length = self._length(kind)
        if not 3 <= length <= 4:  # a function has three parts, a caller's figures four
            raise DamagedStatisticsError("a tuple has the wrong length")
        scalar = self._scalar
        value = tuple([scalar() for _ in range(length)])
        if tuple in map(type, value):  # a reference to a tuple
            raise DamagedStatisticsError("a tuple contains a tuple")
        if number >= 0:
            self.objects[number] = value
        return value

    def _scalar(self) -> Any:
        data, at = self.data, self.at
        flagged = data[at]
        kind = flagged & ~_REFERABLE
        value: Any
        if kind == _REFERENCE:
            self.at = at + 5
            number = _int32(data, at + 1)[0]
            if not 0 <= number < len(self.objects) or self.objects[number] is _UNFINISHED:
                raise DamagedStatisticsError("a reference points nowhere")
            return self.objects[number]
        if kind in _SHORT_TEXTS:
            end = at + 2 + data[at + 1]
            value = self._text(at + 2, end)
        elif kind == _INT:
            end = at + 5
            value = _int32(data, at + 1)[0]
        elif kind == _FLOAT:
            end = at + 9
            value = _float64(data, at + 1)[0]
        elif kind in _LONG_TEXTS:
            length = _int32(data, at + 1)[0]
            end = at + 5 + length
            value = self._text(at + 5, end)
        elif kind == _LONG:
            value, end = self._long(at + 1)
        elif kind == _INT64:
            end = at + 9
            value = _int64(data, at + 1)[0]
        else:
            raise DamagedStatisticsError("an object is neither text nor number")
        self.at = end
        if flagged & _REFERABLE:
            self.objects.append(value)
        return value

    def _text(self, start: int, end: int) -> str:
        if not start <= end <= len(self.data):
            raise DamagedStatisticsError("the data ends early")
        try:
            return printable(self.data[start:end].decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError as error:
            raise DamagedStatisticsError("a text is not UTF-8") from error

    def _long(self, at: int) -> tuple[int, int]:
        count = _int32(self.data, at)[0]
        if abs(count) > MAX_DIGITS:
            raise DamagedStatisticsError("a number has too many digits")
        value = 0
        for digit in range(abs(count)):
            part = self.data[at + 4 + 2 * digit] | self.data[at + 5 + 2 * digit] << 8
            value |= part << 15 * digit
        if value >= _MAX_INT:
            raise DamagedStatisticsError("a number has too many digits")
        return -value if count < 0 else value, at + 4 + 2 * abs(count)
