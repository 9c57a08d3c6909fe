"""Statistics written without create_stats are those of create_stats."""

import cProfile
import gc
import json
import marshal

import pytest

from sm_profiler.formats.cprofile_reader import read_statistics
from sm_profiler.hook.python_window import marshalled


def work() -> None:
    def recurse(depth: int) -> int:
        return depth and recurse(depth - 1)

    recurse(20)
    functions = [eval("lambda x: sorted([x, -x], key=abs)") for _ in range(3)]  # noqa: S307 - three functions of one name
    for function in functions:
        function(3)
    json.loads(json.dumps({"ä": [1.5, None, "x"]}))


@pytest.fixture
def profile():
    profile = cProfile.Profile()
    profile.enable()
    work()
    profile.disable()
    return profile


def test_statistics_equal_those_of_the_standard_library(profile):
    data = marshalled(profile.getstats())
    profile.create_stats()
    assert marshal.loads(data) == profile.stats
    assert set(read_statistics(data)) == set(profile.stats)


def test_no_statistics():
    assert marshal.loads(marshalled([])) == {}


def test_conversion_leaves_few_objects_to_collect(profile):
    entries = profile.getstats()
    gc.disable()
    try:
        gc.collect()
        before = gc.get_count()[0]
        marshalled(entries)
        assert gc.get_count()[0] - before < 100
    finally:
        gc.enable()
