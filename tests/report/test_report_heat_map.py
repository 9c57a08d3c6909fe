"""Heat maps of cores and GPUs: what they show, and how large they get."""

import re

import numpy as np
import pytest

from sm_profiler.formats.columns import Category
from sm_profiler.metrics.system_fold import USE_BUCKETS, SystemFold, Use
from sm_profiler.render.page import page_parts, page_style
from sm_profiler.render.view import LEVELS, MAX_LINES, heat_section, levels, lines_of
from sm_profiler.report import build_report
from sm_profiler.source import open_source
from tests.support.jobs import make_job
from tests.support.reports import FakeWindow, events, system

NASTY = "<img src=x onerror=alert(1)>"


def cores(nodes, each, use=50):
    return [(f"algo-{node + 1}", f"cpu{core}", "CPUUtilization", use) for node in range(nodes) for core in range(each)]


def fold_of(seconds, rows):
    """Return a fold of samples of devices, one at each of the seconds; `rows`: (node, device, dimension, use)."""
    fold = SystemFold()
    for start in range(0, len(seconds), 60):
        found = [
            (float(second), float(use), node, "", device, dimension)
            for second in seconds[start : start + 60]
            for node, device, dimension, use in rows
        ]
        fold.update(FakeWindow(0, events([]), system(found)))
    return fold


def use_of(seconds, rows, kind="cpu"):
    return fold_of(seconds, rows).result().use[kind]


def test_each_core_keeps_its_mean_over_a_whole_day():
    seconds = np.arange(1_700_000_000, 1_700_000_000 + 86_400, 30.0)
    use = use_of(seconds, [("n", "cpu0", "CPUUtilization", 10), ("n", "cpu1", "CPUUtilization", 90)])
    means = use.means(use.ordered())
    assert means.shape[0] == 2
    assert USE_BUCKETS // 2 <= means.shape[1] <= USE_BUCKETS
    assert np.allclose(means[0], 10)
    assert np.allclose(means[1], 90)
    assert use.count.sum() == 2 * len(seconds)
    assert use.width * USE_BUCKETS >= 86_400


GPU = Category.of(["gpu0"]).values


def added(use, seconds, values):
    use.add("n", Category(np.zeros(len(seconds), np.int32), GPU), np.asarray(seconds), np.asarray(values))
    return use


@pytest.mark.parametrize("order", ["forward", "backward", "mixed"])
def test_the_order_of_samples_does_not_matter(order):
    seconds, values = np.arange(100.0, 900.0), np.arange(800.0) / 8.1
    at = {"forward": np.arange(800), "backward": np.arange(800)[::-1]}.get(order)
    at = np.random.default_rng(1).permutation(800) if at is None else at
    use, merged, whole = Use(), Use(), added(Use(), seconds, values)
    for part in np.array_split(at, 20):
        added(use, seconds[part], values[part])
        merged.merge(added(Use(), seconds[part], values[part]))
    for found in (use, merged):
        assert found.count.sum() == 800
        assert (found.first, found.width) == (whole.first, whole.width)
        assert np.array_equal(found.means([("n", "gpu0")]), whole.means([("n", "gpu0")]))


def test_folds_of_other_nodes_merge_to_the_same_digits():
    seconds = np.arange(1000.0, 1300.0)
    parts = [cores(1, 2, 33.3), [("algo-2", "cpu0", "CPUUtilization", 66.7), ("algo-2", "gpu0", "GPUUtilization", 5)]]
    whole = fold_of(seconds, [*parts[0], *parts[1]])
    merged = fold_of(seconds[100:], parts[1])
    for other in (fold_of(seconds, parts[0]), fold_of(seconds[:100], parts[1])):
        merged.merge(other)
    for kind, use in whole.result().use.items():
        found = merged.result().use[kind]
        assert found.ordered() == use.ordered()
        assert np.array_equal(found.means(found.ordered()), use.means(use.ordered()), equal_nan=True)


def test_damaged_values_are_left_out():
    use = added(Use(), [5.0, 6.0, -1.0, 1e300, np.nan], [np.nan, 1e9, 5.0, 5.0, 5.0])
    assert not use.count.any()


def test_devices_are_bounded(monkeypatch):
    monkeypatch.setattr("sm_profiler.metrics.system_fold.MAX_USED", 5)
    fold = fold_of([1000.0], cores(1, 6))
    assert len(fold.result().use["cpu"].rows) == 5
    assert "More devices are left out." in heat_section(fold.result().use, 0).sentences[0]


def test_lines_are_bounded_and_do_not_mix_nodes():
    use = use_of(np.arange(1000.0, 1060.0), [*cores(8, 96), ("algo-3", "cpu7", "CPUUtilization", 100)])
    rows = use.ordered()
    lines = lines_of(rows, use.means(rows), busiest=True)
    assert len(lines) == MAX_LINES == 8 * 8
    assert lines[0].name == "cpu0 to cpu11"
    assert {line.node for line in lines} == {f"algo-{number}" for number in range(1, 9)}
    hot = next(line for line in lines if line.node == "algo-3")
    assert hot.values.max() == 75  # the busiest core of a line: 50 and 100 in the same second
    many = use_of([1000.0], cores(300, 1))
    assert len(lines_of(many.ordered(), many.means(many.ordered()), busiest=True)) <= MAX_LINES


def test_a_picture_is_bounded_however_long_and_large_the_job():
    fold, chance = SystemFold(), np.random.default_rng(1)
    rows = cores(8, 96) + [
        (f"algo-{node}", f"gpu{gpu}", "GPUUtilization", 0) for node in range(1, 9) for gpu in range(8)
    ]
    for minute in range(0, 480, 2):
        found = [
            (1_700_000_000.0 + 60 * minute, use, node, "", device, dimension)
            for (node, device, dimension, _), use in zip(rows, chance.uniform(0, 100, len(rows)), strict=True)
        ]
        fold.update(FakeWindow(0, events([]), system(found)))
    section = heat_section(fold.result().use, 1_700_000_000.0)
    assert len(section.pictures) == 2
    assert all(len(picture.drawing) < 120_000 for picture in section.pictures)
    assert "768 cores" in section.sentences[1]
    assert "busiest core of up to 12" in section.pictures[1].caption


def test_hostile_names_stay_text():
    fold = fold_of([10.0, 11.0], [(NASTY, NASTY, "CPUUtilization", 20), ("b", "c", "CPUUtilization", 5)])
    section = heat_section(fold.result().use, 0)
    assert "<img" not in section.pictures[0].drawing
    assert NASTY[:10] in section.sentences[0]  # the template escapes it


def test_values_have_levels():
    assert levels(np.asarray([np.nan, 0.0, 19.9, 20.0, 100.0])) == [-1, 0, 0, 1, 4]


def test_the_page_has_it_after_the_timeline(tmp_path):
    folder = make_job(tmp_path / "job", "--minutes", "2", "--nodes", "2", "--gpus", "2")
    parts = page_parts(build_report(open_source(folder, cache=False)))
    order = list(parts)
    assert order.index("heat") == order.index("timeline") + 1
    assert parts["heat"].count('role="img"') == 2
    assert "4 GPUs are" in parts["heat"]
    shades = re.findall(r"\.l\d \{ opacity: ([.\d]+); \}", page_style())
    assert len({*shades}) == len(shades) == LEVELS - 1  # the highest is opaque


@pytest.mark.parametrize(("nodes", "named"), [(1, "cpu1 most (90 %), cpu0 least (10 %)"), (2, "cpu1 of algo-1 most")])
def test_a_node_that_is_alone_is_not_named(nodes, named):
    """A laptop was called algo-1."""
    rows = [(f"algo-{node + 1}", f"cpu{core}", "CPUUtilization", (10, 90)[core]) for node in range(nodes) for core in range(2)]  # fmt: skip
    section = heat_section(fold_of(np.arange(1_700_000_000, 1_700_000_120.0), rows).result().use, 0)
    assert named in " ".join(section.sentences)
