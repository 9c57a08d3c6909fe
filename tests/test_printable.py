"""printable: text from files, keys and configurations, in one line and without control characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm_profiler.printable import printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é → 日本", "plain é → 日本"),
        ("red \x1b[31mtext\x07", r"red \x1b[31mtext\x07"),
        ("two\nlines\r\u2028", r"two\nlines\r\u2028"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\udcff", r"\udcff"),
        (5, "5"),
    ],
)
def test_escapes_what_a_terminal_would_interpret(text, expected):
    assert printable(text) == expected


@given(st.text() | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_any_text_can_be_printed(text):
    assert printable(text).isprintable()
    printable(text).encode()
