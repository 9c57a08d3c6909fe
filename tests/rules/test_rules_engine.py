"""The engine: one pass, isolated errors, following a live job, bounded memory."""

import json
import tracemalloc
import weakref

import attrs
import numpy as np
import pytest

from sm_profiler import folding as window_module
from sm_profiler.folding import Slice, SliceTree, Stored, WindowCutter
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.rules import (
    RULES,
    CPUBottleneck,
    EvaluationWindow,
    Following,
    ProfilerReport,
    bottleneck,
    run_folds,
    run_rules,
    statistics,
    windows,
    write_rule_reports,
)
from sm_profiler.rules.statistics import LEAST_PENDING, QuantileSketch
from sm_profiler.storage import open_storage
from tests.support.rules import START_US, MemoryBatch, MemorySource, as_json, batches, events, samples, source_of


@attrs.define
class Counting:
    rows: int = 0
    events: int = 0
    seen: list = attrs.field(factory=list)

    def update(self, window):
        self.rows += len(window.new_system)
        self.events += len(window.new_events)
        self.seen.append((window.start_us, window.end_us))

    def merge(self, other):
        self.rows += other.rows

    def result(self):
        return self.rows


@attrs.define
class Breaking:
    after: int = 2

    def update(self, window):
        assert window is not None
        self.after -= 1
        if self.after < 0:
            raise ZeroDivisionError("no, not\nnow")

    def merge(self, other): ...

    def result(self): ...


def test_one_pass_feeds_all_folds():
    rows = samples(1000)
    source, one, two = source_of(rows, events([(1.0, 0.5, "a", "b")])), Counting(), Counting()
    called = []
    assert run_folds(source, [one, two], on_window=called.append) == {}
    assert one == two
    assert one.rows == len(rows)
    assert one.events == 1
    assert len(called) == len(one.seen) == 9
    assert all(isinstance(window, EvaluationWindow) for window in called)
    assert [end - start for start, end in one.seen] == [60_000_000] * 9


def test_broken_fold_does_not_affect_others():
    fold, broken = Counting(), Breaking()
    found = run_folds(source_of(samples(1000)), [broken, fold])
    assert fold.rows == len(samples(1000))
    assert list(found) == [0]
    assert found[0].startswith("ZeroDivisionError: no, not now (test_rules_engine.py:")


def test_broken_rule_does_not_affect_others(monkeypatch):
    expected = run_rules(source_of(samples(400)))
    monkeypatch.setattr(CPUBottleneck, "update", Breaking().update)
    results = run_rules(source_of(samples(400)), extra_folds=[Breaking()])
    assert set(results.broken) == {"CPUBottleneck", "Breaking"}
    rest = {name: result for name, result in expected.as_dict().items() if name != "CPUBottleneck"}
    assert results.as_dict() == rest


def test_rule_broken_in_result_does_not_affect_others(monkeypatch):
    monkeypatch.setattr(CPUBottleneck, "result", lambda _: 1 / 0)
    results = run_rules(source_of(samples(400)))
    assert list(results.broken) == ["CPUBottleneck"]
    assert len(results.results) == len(RULES) - 1


def test_window_length_is_configurable():
    fold = Counting()
    run_folds(source_of(samples(1000)), [fold], interval_us=15_000_000)
    assert len(fold.seen) == 34
    results = run_rules(source_of(samples(1000)), parameters={"scan_interval_us": "15000000"})
    assert results.results["LoadBalancing"].datapoints == 1000


class TestFollowing:
    def source(self, now=3):
        parts = batches(
            samples(1200),
            events(
                [
                    (index * 3.0, 2.9, "Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", {"step": index})
                    for index in range(190)
                ]
            ),
        )
        return MemorySource([parts.pop(0) for _ in range(now)], finished=False, later=[*parts])

    def test_following_gives_the_same_results(self):
        slept = []
        followed = run_rules(self.source(), follow=Following(sleep=slept.append))
        assert as_json(followed.as_dict()) == as_json(run_rules(self.source(now=10)).as_dict())
        assert set(slept) == {10.0}

    def test_windows_are_yielded_when_complete(self):
        come, source = [], self.source()
        following = Following(sleep=lambda _: come.append(None))
        for window in windows(source, follow=following):
            come += [window.start_us]
        # With files of minutes 0, 1 and 2, the windows 0 and 1 are complete; then it waits.
        assert come[:3] == [START_US, START_US + 60_000_000, None]
        assert come[3:5] == [START_US + 120_000_000, None]

    def test_stop_ends_the_evaluation(self):
        following = Following(stop=lambda: True, sleep=pytest.fail)
        fold = Counting()
        run_folds(self.source(), [fold], follow=following)
        assert fold.rows == sum(len(part.system) for part in self.source().batches_now)

    def test_results_are_available_after_each_window(self):
        seen = []
        run_rules(
            self.source(now=10), on_window=lambda _, found: seen.append(found.results["LoadBalancing"].datapoints)
        )
        assert seen == sorted(seen)
        assert seen[0] < 121
        assert seen[-1] == 1200

    def test_files_are_read_once(self):
        asked = []

        class Noted(MemorySource):
            def batches(self, *, unsettled=False):
                asked.append(len(self.batches_now))
                return super().batches(unsettled=unsettled)

        source = self.source()
        run_rules(Noted(source.batches_now, False, source.later), follow=Following(sleep=lambda _: None))
        assert asked[0] == 3
        assert set(asked[1:]) <= {0, 1}


@pytest.mark.slow
def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(statistics, "LIMIT", 512)  # reached within this test's hours
    monkeypatch.setattr(bottleneck, "MAX_LISTED", 200)
    report = ProfilerReport()
    rng = np.random.default_rng(0)
    minute = samples(120)
    steps = events(
        [(index * 0.25, 0.2, "Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", {"step": index}) for index in range(230)]
    )
    used = []
    tracemalloc.start()
    for index in range(100):
        shift = index * 60
        rows = attrs.evolve(
            minute, timestamp=minute.timestamp + shift, value=np.round(rng.uniform(0, 100, len(minute)), 2)
        )
        lengths = np.round(rng.lognormal(12, 0.3, len(steps)))
        happened = attrs.evolve(steps, start_us=steps.start_us + shift * 1e6, duration_us=lengths)
        start_us = START_US + shift * 1_000_000
        report.update(EvaluationWindow(start_us, start_us + 60_000_000, rows, happened))
        used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert not report.broken
    assert used[99] - used[49] < 50 * 5_000  # per window: its counts and the breakdown of its bottlenecks


def test_cutter_drops_rows_of_past_windows():
    cutter = WindowCutter()
    held = []
    for part in batches(samples(4000)):
        cutter.add(part)
        held += [sum(len(each.table) for each in cutter._system) for _ in cutter.ready()]
    assert max(held) <= 5 * 120 * len(samples(1))


def test_cutting_a_window_takes_no_more_than_its_rows():
    rows = SystemColumns.concat([samples(600)] * 20)
    cutter = WindowCutter()
    for part in batches(attrs.evolve(rows, timestamp=np.floor(rows.timestamp))):
        cutter.add(part)
    cut = cutter.rest()
    next(cut)
    tracemalloc.start()
    window = next(cut)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = 32 * len(window.new_system)  # two floats and four codes
    assert held < 1.6 * size
    assert peak < 2.2 * size
    assert len(window.system) > len(window.new_system)  # those at its end, too, which were not made yet


def test_rows_of_a_window_are_made_once_and_not_kept():
    cutter = WindowCutter()
    rows = samples(300)
    for part in batches(attrs.evolve(rows, timestamp=np.floor(rows.timestamp))):
        cutter.add(part)
    first, *_ = cutter.rest()
    kept = first.system
    assert first.system is kept
    assert kept is not first.new_system
    assert first.events is first.new_events
    gone = weakref.ref(kept)
    del kept
    assert gone() is None
    assert len(first.system) > len(first.new_system)


def test_a_slice_that_waits_is_put_away():
    put_away = []
    tree = SliceTree(lambda state: lambda: put_away.append(state) or state)
    tree.add(0, 0, Slice([]))
    assert not put_away
    tree.add(0, 1, Slice([]))
    assert len(put_away) == 1


def test_states_are_merged_fold_by_fold():
    class Noted:
        def __init__(self, name):
            self.name = name

        def merge(self, other):
            merged.append((self.name, other.name))
            self.name += other.name

    def fold(name):
        asked.append(name)
        return Noted(name)

    def stored(names):
        return Slice([Stored(lambda name=name: fold(name)) for name in names])

    asked, merged, kept = [], [], []
    tree = SliceTree(lambda state: lambda: kept.append(state) or state)
    for number, names in enumerate(("ax", "by", "cz")):
        tree.add(0, number, stored(names))
    whole = tree._waiting[1, 0]()
    assert not asked
    assert whole.load(0).name == "ab"
    assert asked == ["a", "b"]
    assert [fold.name for fold in tree.whole().folds] == ["abc", "xyz"]
    assert merged == [("a", "b"), ("ab", "c"), ("x", "y"), ("xy", "z")]


def test_a_sketch_of_few_distinct_values_is_small():
    values = np.random.default_rng(0).integers(0, 9, 20_000).astype(np.float64)
    piecewise, at_once = QuantileSketch(), QuantileSketch()
    for part in np.split(values, 200):
        piecewise.add(part)
        assert piecewise._pending_count <= LEAST_PENDING
    at_once.add(values)
    for one, other in zip(piecewise.values_and_counts(), at_once.values_and_counts(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_source_without_minutes():
    """Files without a time in their names."""
    parts = [MemoryBatch(part.system, part.events, None) for part in batches(samples(500))]
    fold = Counting()
    run_folds(MemorySource(parts), [fold])
    assert fold.rows == len(samples(500))


def test_long_event_counts_once_and_appears_in_every_window():
    found = list(windows(source_of(samples(600), events([(10.0, 250.0, "long", "Forward")]))))
    assert [len(window.new_events) for window in found] == [1, 0, 0, 0, 0]
    assert [len(window.events) for window in found] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("as_storage", [False, True])
def test_writes_one_line_per_report(tmp_path, as_storage):
    results = run_rules(source_of(samples(400)))
    written = write_rule_reports(results.as_dict(), open_storage(str(tmp_path)) if as_storage else tmp_path)
    assert len(written) == len(RULES)
    for key in written:
        text = (tmp_path / key).read_text()
        assert text.count("\n") == 1
        assert list(json.loads(text)) == ["RuleTriggered", "Violations", "Details", "Datapoints", "RuleParameters"]


def test_window_without_rows():
    report = ProfilerReport()
    window = EvaluationWindow(START_US, START_US + 60_000_000, samples(0), EventColumns.empty())
    assert report.update(window) is False
    assert not report.broken


@pytest.mark.parametrize("minute_us", [2_160_000_000_000_000, 999_999_999_999_999_999])
def test_far_off_file_names_yield_no_empty_windows(minute_us):
    named_far_off = MemoryBatch(samples(0), events([(5.0, 1.0, "late", "Forward")]), minute_us)
    expected = len(list(windows(source_of(samples(600)))))
    found = list(windows(MemorySource([*batches(samples(600)), named_far_off])))
    assert len(found) == expected
    assert sum(len(window.new_events) for window in found) == 1


def test_empty_windows_are_bounded(monkeypatch):
    monkeypatch.setattr(window_module, "MAX_EMPTY_TOTAL", 50)
    sparse = samples(100)
    sparse = attrs.evolve(sparse, timestamp=sparse.timestamp[0] + np.arange(len(sparse)) * 20 * 60.0)
    fold = Counting()
    run_folds(source_of(sparse), [fold])
    assert fold.rows == len(sparse)
    assert len(fold.seen) <= len(sparse) + 50 + 20


def test_rows_after_the_longest_job_share_a_window(monkeypatch):
    monkeypatch.setattr(window_module, "MAX_SPAN_US", 10 * window_module.MINUTE_US)
    sparse = samples(100)
    sparse = attrs.evolve(sparse, timestamp=sparse.timestamp[0] + np.arange(len(sparse)) * 60.0)
    fold = Counting()
    run_folds(MemorySource([MemoryBatch(sparse, EventColumns.empty(), START_US)]), [fold])
    assert fold.rows == len(sparse)
    assert len(fold.seen) <= 12
