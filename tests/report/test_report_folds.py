"""Folds: results do not depend on the windows, partial folds merge, and thinning keeps extremes."""

import json
from itertools import pairwise

import attrs
import numpy as np
import pytest

from sm_profiler.folding import Slice, SliceTree, run_sliced
from sm_profiler.formats.columns import Category
from sm_profiler.formats.event_names import MEMORY
from sm_profiler.metrics.memory_fold import MAX_SAMPLES, MemoryFold
from sm_profiler.metrics.parts import PartTable
from sm_profiler.metrics.step_fold import StepFold
from sm_profiler.metrics.system_fold import BUCKETS, MAX_DEVICES, Buckets, SystemFold
from sm_profiler.render.page import POINTS, render_html, thin
from sm_profiler.report import build_report
from sm_profiler.source import open_source
from tests.support.jobs import make_job
from tests.support.reports import START_S, FakeWindow, events, gpu_samples, metrics_of, report_from, system, training


@pytest.mark.parametrize("window_s", [1, 7, 60])
def test_slices_add_up_to_the_loop_for_any_window(window_s):
    metrics = metrics_of(training(900, wait=0.004), window_s=window_s)
    (rank,) = metrics.ranks
    assert sum(rank.seconds.values()) == pytest.approx(rank.loop, rel=1e-6)
    assert rank.seconds["wait"] == pytest.approx(900 * 0.004, rel=1e-3)
    assert rank.seconds["forward"] == pytest.approx(900 * 0.003, rel=1e-3)
    assert rank.seconds["outside"] == pytest.approx(900 * 0.0002, rel=0.01)


def test_merged_folds_equal_the_whole():
    rows = training(600) + training(600, node="algo-2-1")
    whole, halves = StepFold(), (StepFold(), StepFold())
    table = events(rows)
    for start in range(8):
        chosen = table[(table.start_us // 1e6 - START_S) == start]
        window = FakeWindow((START_S + start) * 1_000_000, chosen, system([]))
        whole.update(window)
        halves[start % 2].update(window)
    halves[0].merge(halves[1])
    for name, rank in whole.result().steps.items():
        other = halves[0].result().steps[name]
        np.testing.assert_array_equal(rank.start, other.start)
        np.testing.assert_allclose(rank.parts, other.parts)


def test_sampled_phases_represent_all_steps():
    rows = [row for row in training(800, wait=0.01) if row[0].startswith("Step") or row[5] % 4 == 0]
    (rank,) = metrics_of(rows).ranks
    assert rank.share_of_iterations("wait") == pytest.approx(0.01 / 0.0192, abs=0.01)
    assert rank.share("wait") == pytest.approx(0.01 / 0.0192, abs=0.02)
    assert sum(rank.seconds.values()) == pytest.approx(rank.loop, rel=1e-6)


def test_late_files_keep_the_order():
    table = events(training(300))
    fold = StepFold()
    late = (table.start_us / 1e6 - START_S > 2) & (table.start_us / 1e6 - START_S < 3)
    fold.update(FakeWindow(START_S * 1_000_000, table[~late], system([])))
    fold.update(FakeWindow((START_S + 60) * 1_000_000, table[late], system([])))
    (rows,) = fold.result().steps.values()
    assert len(rows) == 300
    assert (np.diff(rows.start) > 0).all()


def test_buckets_keep_extremes_means_and_counts():
    rng = np.random.default_rng(0)
    seconds, values = np.sort(rng.uniform(START_S, START_S + 86400, 50_000)), rng.uniform(0, 100, 50_000)
    values[12345] = 999.0
    buckets = Buckets()
    for part in np.array_split(np.arange(50_000), 40):
        buckets.add(seconds[part], values[part])
    assert len(buckets.count) <= BUCKETS
    assert buckets.count.sum() == 50_000
    assert buckets.high.max() == 999.0
    assert buckets.total.sum() == pytest.approx(values.sum())


def test_buckets_merge_in_any_order():
    rng = np.random.default_rng(1)
    a, b = Buckets(), Buckets()
    early, late = rng.uniform(START_S, START_S + 900, 500), rng.uniform(START_S + 5000, START_S + 9000, 500)
    a.add(early, early % 100)
    b.add(late, late % 100)
    a.merge(b)
    whole = Buckets()
    whole.add(np.concatenate([early, late]), np.concatenate([early, late]) % 100)
    assert a.count.sum() == whole.count.sum() == 1000
    assert a.width == whole.width
    np.testing.assert_allclose(a.total.sum(), whole.total.sum())
    a.merge(Buckets())


def test_thinning_keeps_the_longest_step():
    y = np.ones(50_000)
    y[31_337] = 500
    series = thin(np.arange(50_000.0), y, "steps", "forward")
    assert len(series["x"]) <= POINTS
    assert max(series["high"]) == 500
    assert min(series["low"]) == 1


def test_network_metrics_count_the_training_container_only():
    fold = SystemFold()
    rows = [
        (1.0, 100.0, "algo-1", "network", "ReceiveBytesPerSecond", "Algorithm"),
        (1.0, 900.0, "algo-1", "network", "ReceiveBytesPerSecond", "Platform"),
    ]
    fold.update(FakeWindow(0, events([]), system(rows)))
    ((_, data),) = fold.result().of("received").items()
    assert data.total.sum() == 100


def test_nodes_are_in_natural_order():
    metrics = metrics_of(
        training(30, node="algo-10-10") + training(30, node="algo-2-2"),
        gpu_samples(5, 3, node="algo-10") + gpu_samples(5, 3, node="algo-2"),
    )
    assert [rank.name for rank in metrics.ranks] == ["algo-2-2", "algo-10-10"]
    assert [gpu.node for gpu in metrics.gpus] == ["algo-2", "algo-10"]


def test_memory_samples_are_bounded_and_invalid_ones_skipped():
    fold = MemoryFold()
    fold._add("algo-1-0", 1.0, "no json")
    for second in range(50_000):
        fold._add("algo-1-0", float(second), '{"resident_bytes": 5}')
    seconds, values = fold.result()["algo-1-0"]
    assert 1000 < len(seconds) <= 20_001
    assert (values == 5).all()


def test_metrics_of_a_synthetic_job_match_its_options(tmp_path):
    make_job(tmp_path / "job", "--scenario", "dataloader-slow", "--minutes", "3", "--gpus", "2", "--cpus", "6")
    metrics = build_report(open_source(tmp_path / "job", cache=False)).metrics
    assert metrics.system.cores == {"algo-1": 6}
    assert len(metrics.gpus) == 2
    assert len(metrics.ranks) == 2
    assert metrics.loader.num_workers == 0
    assert metrics.duration == pytest.approx(180, abs=2)
    assert metrics.initialization == pytest.approx(0.06 * 180, abs=1.5)
    assert metrics.average_share("evaluation") == pytest.approx(0.2, abs=0.03)
    assert not metrics.running


def test_events_without_a_phase_are_ignored():
    fold = StepFold()
    rows = [*training(30), ("", "", 1.0, 0.1, "algo-1-0", 0)]
    fold.update(FakeWindow(START_S * 1_000_000, events(rows), system([])))
    assert len(fold.result().steps["algo-1-0"]) == 30


@pytest.mark.parametrize("value", [1e308, -1e308, float("inf"), float("nan")])
def test_impossible_values_do_not_reach_the_page(value):
    rows = [*gpu_samples(50, 5), (2.2, value, "algo-1", "gpu", "gpu0", "GPUUtilization")]
    report = report_from(training(30), rows)
    assert report.metrics.mean_of("gpu") == pytest.approx(50)
    render_html(report)


def test_devices_are_bounded():
    fold = SystemFold()
    count = MAX_DEVICES + 100
    rows = [(1.0, 50.0, "algo-1", "gpu", f"gpu{number}", "GPUUtilization") for number in range(count)]
    fold.update(FakeWindow(0, events([]), system(rows)))
    found = fold.result().of("gpu")
    assert len(found) == MAX_DEVICES + 1
    assert sum(data.count.sum() for data in found.values()) == count


def test_steps_without_duration_have_a_report():
    render_html(report_from([("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", 1.0, 0.0, "algo-1-0", 0)] * 100))


def test_a_gpu_without_valid_memory_samples_has_a_report():
    report = report_from(training(30), gpu_samples(50, 5, memory=float("nan")))
    (gpu,) = report.metrics.gpus
    assert gpu.mean == pytest.approx(50)
    assert np.isnan(gpu.memory_max)
    render_html(report)


@pytest.mark.parametrize(
    "args", ['{"resident_bytes": 1' + "0" * 400 + "}", "[" * 100_000, "[]", '{"resident_bytes": null}']
)
def test_a_damaged_memory_sample_is_left_out(args):
    fold = MemoryFold()
    rows = [(MEMORY, "memory", at, 0.0, "algo-1-0", -1) for at in (1.0, 2.0)]
    table = events(rows)
    texts = Category(np.array([0, 1], np.int32), (args, '{"resident_bytes": 5}'))
    fold.update(FakeWindow(0, attrs.evolve(table, args=texts), system([])))
    assert fold.result()["algo-1-0"][1].tolist() == [5.0]


def memory_of(samples):
    fold = MemoryFold()
    for seconds, size in samples:
        fold._add("a", seconds, f'{{"resident_bytes": {size}}}')
    return fold


@pytest.mark.parametrize("cuts", [(10,), (3, 40_000), (25_000, 25_001, 60_000)])
def test_thinned_samples_do_not_depend_on_the_parts_of_a_job(cuts):
    samples = [(1.7e9 + 0.9 * number, float(number)) for number in range(70_000)]
    times, sizes = memory_of(samples).result()["a"]
    assert MAX_SAMPLES / 2 < len(times) <= MAX_SAMPLES
    *folds, last = [memory_of(samples[start:end]) for start, end in pairwise((0, *cuts, len(samples)))]
    for fold in folds:
        last.merge(fold)
    np.testing.assert_array_equal(np.column_stack(last.result()["a"]), np.column_stack((times, sizes)))


def test_table_of_parts_reads_like_the_matrix():
    matrix = np.zeros((6, 4))
    matrix[:, 1], matrix[2, 3] = np.arange(6), 7
    table = PartTable.of(matrix)
    assert sorted(table.columns) == [1, 3]
    np.testing.assert_array_equal(np.asarray(table), matrix)
    for number in range(4):
        np.testing.assert_array_equal(table[:, number], matrix[:, number])
    for rows in (slice(1, 4), np.asarray([4, 0]), matrix[:, 1] > 2):
        np.testing.assert_array_equal(np.asarray(table[rows]), matrix[rows])
        np.testing.assert_array_equal(table[rows, 0], matrix[rows, 0])
    twice = PartTable.concat([table, PartTable.of(np.zeros((2, 4)))], [0])
    twice.add(6, np.asarray([0.5, 0, 0, 2]))
    np.testing.assert_array_equal(np.asarray(twice), np.concatenate([matrix, [[0.5, 0, 0, 2], [0, 0, 0, 0]]]))
    assert table[2, 3] == 7
    assert len(table) == 6


class Sum:
    """A fold whose digits depend on the order of its terms."""

    def __init__(self) -> None:
        self.total = 0.0

    def update(self, window) -> None:
        self.total += window * 0.1

    def merge(self, other) -> None:
        self.total += other.total

    def result(self) -> float:
        return self.total


def added(numbers, *, empty=()) -> tuple[float, int]:
    tree = SliceTree()
    for number in sorted({*numbers, *empty}):
        state = Slice([Sum()])
        if number in numbers:
            state.update(number + 1)
        tree.add(0, number, state)
    return tree.whole().folds[0].result()


@pytest.mark.parametrize(
    "numbers", [[0], [0, 1, 2, 3, 4, 5, 6], [0, 3, 4, 9], [0, 5], [0, 1, 6, 7, 8, 30], [0, 2, 4, 6]]
)
def test_a_gap_merges_to_the_same_digits_as_empty_slices(numbers):
    assert added(numbers) == added(numbers, empty=range(max(numbers) + 1))


def test_an_event_of_a_far_year_costs_no_slices_between(tmp_path, monkeypatch):
    job = make_job(tmp_path / "job", "--minutes", "2", "--gpus", "1", "--cpus", "1")
    trace = min(job.glob("**/*pythontimeline.json"))
    year_us = 365 * 86_400_000_000
    late = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 2_900 * year_us}},
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Mine"}},
        {"name": "mark", "pid": 1, "ph": "X", "ts": 0, "dur": 100},
    ]
    at, _, rest = trace.name.partition("_")
    (trace.parent / f"{int(at) + 5}_{rest}").write_text(json.dumps(late))
    made = []

    def folds():
        made.append(1)
        return [Sum()] if len(made) > 10 else []

    run_sliced(open_source(job, cache=False, progress=False), folds)
    assert len(made) < 10
