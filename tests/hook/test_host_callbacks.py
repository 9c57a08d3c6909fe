"""Functions that JAX's compiled code calls on the host, with a fake clock and a fake `pure_callback`."""

import functools

import pytest

from sm_profiler.formats.event_names import CALLBACK
from sm_profiler.hook.host_callbacks import MAX_KNOWN, HostCallbacks
from sm_profiler.hook.timed_calls import MAX_LONG


class Timed:
    def __init__(self):
        self.now, self.records, self.errors = 0, [], []
        self.collector = HostCallbacks(self.records.append, lambda: 7, self.errors.append, lambda: self.now)
        self.pure_callback = self.collector.wrap("pure_callback", lambda callback, *args, **_: callback(*args))
        self.collector.start()

    def works(self, milliseconds):
        def augment(x):
            self.now += int(milliseconds * 1e6)
            return x + 1

        return augment


@pytest.fixture
def timed():
    return Timed()


def test_a_long_call_is_an_event_with_its_function(timed):
    assert timed.pure_callback(timed.works(8), 1) == 2
    ((phase, name, start, end, step, args),) = timed.records
    assert (phase, name, end - start, step) == (CALLBACK, "augment.pure_callback", 8_000_000, 7)
    assert args["calls"] == 1
    assert (args["file"], args["function"]) == (__file__, "augment")


def test_short_calls_are_summed_up(timed):
    function = timed.works(0.5)
    for _ in range(4):
        timed.pure_callback(function, 1)
    assert not timed.records
    timed.collector.beat()
    timed.collector.beat()
    ((_, _, start, end, step, args),) = timed.records
    assert (end - start, step, args["calls"]) == (2_000_000, -1, 4)


def test_events_are_limited_between_two_beats(timed):
    function = timed.works(2)
    for _ in range(MAX_LONG + 5):
        timed.pure_callback(function, 1)
    timed.collector.beat()
    assert len(timed.records) == MAX_LONG + 1
    assert timed.records[-1][5]["calls"] == 5


def test_the_same_function_is_wrapped_once(timed):
    """JAX compares functions to find what it compiled before."""
    seen = []
    patched = timed.collector.wrap("io_callback", seen.append)
    function = timed.works(1)
    patched(function)
    patched(function)
    assert seen[0] is seen[1]
    assert seen[0] is not function
    assert seen[0].__name__ == "augment"
    for _ in range(MAX_KNOWN):
        patched(timed.works(1))
    assert seen[-1].__name__ == "augment"
    assert not hasattr(seen[-1], "__wrapped__")


def test_odd_functions_and_errors_pass_through(timed):
    assert timed.pure_callback(functools.partial(lambda x, y: x + y, 1), 2) == 3
    assert timed.collector.wrap("io_callback", lambda **given: given["callback"](1))(callback=timed.works(2)) == 2
    assert timed.collector.wrap("callback", lambda *given: given)(None) == (None,)

    class NoHash:
        __hash__ = None

        def __call__(self, x):
            return x

    assert timed.pure_callback(NoHash(), 4) == 4
    with pytest.raises(ZeroDivisionError):
        timed.pure_callback(lambda: 1 / 0)
    assert not timed.errors


def test_errors_of_the_hook_do_not_reach_the_function(timed):
    function = timed.works(8)
    timed.pure_callback(function, 1)
    timed.collector._times = None
    assert timed.pure_callback(function, 1) == 2
    assert len(timed.errors) == 1


def test_compiled_code_that_outlives_the_hook_records_nothing(timed):
    function = timed.works(8)
    timed.collector.close()
    timed.pure_callback(function, 1)
    timed.collector.beat()
    assert not timed.records


def test_a_function_that_cannot_be_compared_is_left_alone(timed):
    class Odd:
        def __call__(self, x):
            return x + 1

        def __hash__(self):
            return 1

        def __eq__(self, other):
            raise ValueError

    assert [timed.pure_callback(Odd(), 1) for _ in range(2)] == [2, 2]
    assert not timed.errors
