"""Masks for secrets: no line takes long, and what a mask leaves of a literal holds nothing of it."""

import time

import pytest

from sm_profiler.hook.secrets import masked
from sm_profiler.hook.stacks import MAX_SECRET


@pytest.mark.parametrize(
    "text", ["token:" + " " * MAX_SECRET, "password" * MAX_SECRET, "a-" * MAX_SECRET, "token: a|" * MAX_SECRET]
)
def test_no_line_takes_long(text):
    begun = time.process_time()
    masked(text[:MAX_SECRET])
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('password = """hunter2"""', 'password = """***"""'),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AWS_SECRET_ACCESS_KEY=***"),
    ],
)
def test_nothing_of_a_literal_is_left(line, expected):
    assert masked(line) == expected
