"""MetricsRegex: the same matches as `re`, in bounded time."""

import re
import time

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sm_profiler.config import load_profile
from sm_profiler.config.name_pattern import NamePattern

NAMES = (
    "",
    "a",
    "DataLoaderIter::GetNext",
    "_SingleProcessDataLoaderIter.__init__",
    "aaa bbb",
    "a\nb",
    "x9_é",
    "ABAB\n",
)
atoms = st.sampled_from(
    [
        "a",
        "B",
        "9",
        "_",
        ".",
        r"\d",
        r"\W",
        r"\s",
        "[a-c]",
        "[^b]",
        r"[\w:]",
        "[^a-z\n]",
        "^",
        "$",
        r"\b",
        r"\B",
        r"\A",
        r"\Z",
        "é",
    ]
)
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("{}|{}".format, inner, inner),
        st.builds("({}){}".format, inner, st.sampled_from(["", "*", "+?", "?", "{2}", "{1,3}", "{0,2}?", "{2,}"])),
        st.builds("(?:{})".format, inner),
    ),
    max_leaves=10,
)
names = st.text("aAbB9_ .:\né", max_size=12) | st.sampled_from(NAMES)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(patterns, names, st.sampled_from(["", "(?s)", "(?m)", "(?x)", "(?i)"]))
def test_matches_as_re_does(pattern, name, flags):
    try:
        expected = re.compile(flags + pattern, re.IGNORECASE)
    except re.error:
        assume(False)
    try:
        found = NamePattern(flags + pattern)
    except ValueError as error:
        assume("states" not in str(error))
        raise
    assert found.matches(name) is (expected.match(name) is not None)


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r"(a|a)*$", r"(a*)*b", r"(.*,){11}P", r"(?:a?){60}a{60}", r"((((a*)*)*)*)*b"]
)
def test_hostile_patterns_are_matched_quickly(pattern):
    started = time.process_time()
    NamePattern(pattern).matches("a" * 100_000)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "not a regular expression"),
        ("(a{999}){999}", "states"),
        ("(){4000000000}", ""),
        ("(?:a{60000}){60000}", "states"),
        ("x" * 300, "longer than 256"),
        (r"(a)\1", "bounded time"),
        ("(?=a)", "bounded time"),
        ("(?a)x", "flags"),
        ("(?-i:x)", "flags"),
    ],
)
def test_rejects_what_cannot_be_matched_in_bounded_time(pattern, reason):
    started = time.process_time()
    if reason:
        with pytest.raises(ValueError, match=reason):
            NamePattern(pattern)
        parameters = {"DataloaderProfilingConfig": f'{{"StartStep": 1, "MetricsRegex": "{pattern}"}}'}
        (problem,) = load_profile({"ProfilingParameters": parameters}).problems
        assert problem.startswith("DataloaderProfilingConfig.MetricsRegex: ")
    else:
        NamePattern(pattern)
    assert time.process_time() - started < 1


def test_remembers_a_limited_number_of_names():
    pattern = NamePattern("name1")
    assert sum(pattern.matches(f"name{number}") for number in range(2000)) == 1111
    assert len(pattern._seen) <= 500
