"""MetricsRegex: the matches of `re`, without patterns that could take too long."""

import re
import time

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sm_profiler.config import load_profile
from sm_profiler.config.profile import NamePattern

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
        assert "too long" in str(error) or flags == "(?x)"
        assume(False)
    assert found.matches(name) is (expected.match(name) is not None)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$", r"(a|a)*$", r"(a*)*b", r"(.*,){11}P", r"(?:a?){60}a{60}", r"((((a*)*)*)*)*b", "(a{999}){999}",
        "(?:a{60000}){60000}", 40 * "a?" + 40 * "a", 50 * "(a|a)" + "b", r".*.*.*.*.*b", "(?:a|a)" * 5, "[)]+(a|b]+)+",
    ],
)  # fmt: skip
def test_patterns_that_could_take_too_long_are_rejected(pattern):
    with pytest.raises(ValueError, match="too long to match"):
        NamePattern(pattern)


@pytest.mark.parametrize("pattern", [r".*.*.*.*b", r"(a|a)(a|a)a*a*b", r"(?=a*)a*a*b", r"a*?a*?a*?b", r"(a*a*)a*\1b"])
def test_what_is_accepted_is_matched_quickly(pattern):
    started = time.process_time()
    assert not NamePattern(pattern).matches("a" * 100_000)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "pattern",
    [".*", "DataLoader.*", ".*(Single|Multi)Process.*Next", "a|b|c|d|e|f", r"[(|)*+]+\(x\)*", "(?i)(data)?loader"],
)
def test_usual_patterns_are_accepted(pattern):
    NamePattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "not a regular expression"),
        ("a{4000000000000}", "not a regular expression"),
        ("x" * 300, "longer than 256"),
        ("(a)+", "too long to match"),
        ("(?x) a", "flag x"),
    ],
)
def test_problems_name_the_parameter(pattern, reason):
    with pytest.raises(ValueError, match=reason):
        NamePattern(pattern)
    parameters = {"DataloaderProfilingConfig": f'{{"StartStep": 1, "MetricsRegex": "{pattern}"}}'}
    (problem,) = load_profile({"ProfilingParameters": parameters}).problems
    assert problem.startswith("DataloaderProfilingConfig.MetricsRegex: ")


def test_remembers_a_limited_number_of_names():
    pattern = NamePattern("name1")
    assert sum(pattern.matches(f"name{number}") for number in range(2000)) == 1111
    assert pattern._matches.cache_info().currsize <= 500
