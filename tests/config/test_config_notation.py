"""The notation of one metrics config: everything the SDK writes is parsed, and nothing is evaluated."""

import time
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sm_profiler.config import format_metrics, parse_metrics
from sm_profiler.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"StartStep": 5, "NumSteps": 1, }', {"StartStep": 5, "NumSteps": 1}),
        ('{"StartStep":5,"NumSteps":1}', {"StartStep": 5, "NumSteps": 1}),
        ('{"StartStep": 0, "NumSteps": None, }', {"StartStep": 0, "NumSteps": None}),
        ("{'StartStep': True, }", {"StartStep": True}),
        ('{"Duration": inf, }', {"Duration": float("inf")}),
        ('{"Duration": 1e-07, }', {"Duration": 1e-07}),
        (
            '{"Duration": 1e+20, "StartTimeInSecSinceEpoch": 1_000, }',
            {"Duration": 1e20, "StartTimeInSecSinceEpoch": 1000},
        ),
        ("{}", {}),
        (" { } ", {}),
        (r'{"MetricsRegex": "a"b\d+\"", }', {"MetricsRegex": 'a"b\\d+\\"'}),
        ('{"MetricsRegex": "", }', {"MetricsRegex": ""}),
        ('{"MetricsRegex": "", }", }', {"MetricsRegex": '", }'}),
        ('{"MetricsRegex": "x, y: z", "StartStep": 7, }', {"MetricsRegex": "x, y: z", "StartStep": 7}),
        ('{"MetricsRegex": "é\n", }', {"MetricsRegex": "é\n"}),
    ],
)
def test_parses(text, expected):
    assert parse_metrics(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "[]",
        '{"StartStep": }',
        '{"StartStep" 5}',
        '{"StartStep": 5',
        '{"StartStep": 5} trailing',
        '{"StartStep": __import__("os").system("touch /tmp/no")}',
        '{"StartStep": 1+1}',
        '{"StartStep": [1]}',
        '{"StartStep": 5, "startstep": 6}',
        '{"StartStep": abc}',
        '{"MetricsRegex": "' + "x" * 5000 + '"}',
    ],
)
def test_rejects_other_text_in_one_line(text):
    with pytest.raises(ConfigError) as caught:
        parse_metrics(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@settings(deadline=None)
@given(
    start=st.integers(0) | st.none(),
    number=st.integers(1) | st.none(),
    regex=st.text(st.characters(codec="utf-8"), max_size=200) | st.text("\", }{:\\\n'", max_size=30),
)
@example(0, None, '", "MetricsRegex": "')
@example(0, 1, '"')
def test_parses_what_the_sdk_writes(start, number, regex):
    written = {"StartStep": start, "NumSteps": number, "MetricsRegex": regex}
    assert parse_metrics(format_metrics(written)) == written


@settings(deadline=None)
@given(duration=st.floats(min_value=0, exclude_min=True, allow_nan=False), start=st.integers())
def test_parses_times_that_the_sdk_writes(duration, start):
    written = {"StartTimeInSecSinceEpoch": start, "Duration": duration}
    assert parse_metrics(format_metrics(written)) == written


@settings(deadline=None)
@given(st.text() | st.text("{}\":, 'abcStartStep123", max_size=200))
def test_parses_or_rejects_any_text(text):
    with suppress(ConfigError):
        assert isinstance(parse_metrics(text), dict)


HOSTILE = (
    '{"MetricsRegex": "' + '", "A": "' * 400 + "x",
    "{" + ", ".join(f'"{letter}": ""' for letter in "abcdefghijklmnopqrstuvwxyz"),
    '{"a": "' + "".join(f'", "k{number}": "' for number in range(300)),
    '{"a": 1' + "".join(f', "k{number}": 1' for number in range(350)),
    '{"a": "' + '"' * 4000,
    '{"a": "x"' + " " * 4000,
    "{" + "{" * 4000,
)


@pytest.mark.timeout(5)
@pytest.mark.parametrize("text", HOSTILE)
def test_rejects_hostile_text_quickly(text):
    started = time.process_time()
    with pytest.raises(ConfigError):
        parse_metrics(text)
    assert time.process_time() - started < 0.5


def test_parses_many_keys():
    written = {f"key{number}": "x" for number in range(200)}
    assert parse_metrics(format_metrics(written)) == written
