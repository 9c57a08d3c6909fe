"""Heat maps of cores and GPUs: what they show, and how large they get."""

import numpy as np
import pytest

from sm_profiler.formats.columns import Category
from sm_profiler.serve.heat_map import COLUMNS, MAX_LINES, Heat, HeatFold, heat_section, levels, lines_of
from sm_profiler.serve.live import LiveJob
from tests.support.serving import data_files, end, make_job

NASTY = "<img src=x onerror=alert(1)>"


class Window:
    """System metrics of devices, one sample a second."""

    def __init__(self, seconds, rows):
        """`rows`: (node, device, dimension, use)."""
        count = len(rows)
        self.new_system = self
        self.timestamp = np.repeat(np.asarray(seconds, float), count)
        self.value = np.tile([float(row[3]) for row in rows], len(seconds))
        for number, name in enumerate(("node", "name", "dimension")):
            setattr(self, name, Category.of([row[number] for row in rows] * len(seconds)))


def cores(nodes, each, use=50):
    return [(f"algo-{node + 1}", f"cpu{core}", "CPUUtilization", use) for node in range(nodes) for core in range(each)]


def fold_of(seconds, rows):
    fold = HeatFold()
    for start in range(0, len(seconds), 60):
        fold.update(Window(seconds[start : start + 60], rows))
    return fold


def test_each_core_keeps_its_mean_over_a_whole_day():
    seconds = np.arange(1_700_000_000, 1_700_000_000 + 86_400, 30.0)
    heat = fold_of(seconds, [("n", "cpu0", "CPUUtilization", 10), ("n", "cpu1", "CPUUtilization", 90)]).heats["cpu"]
    means = heat.means(heat.ordered())
    assert means.shape[0] == 2
    assert COLUMNS // 2 <= means.shape[1] <= COLUMNS
    assert np.allclose(means[0], 10)
    assert np.allclose(means[1], 90)
    assert heat.count.sum() == 2 * len(seconds)
    assert heat.width * COLUMNS >= 86_400


@pytest.mark.parametrize("order", ["forward", "backward", "mixed"])
def test_the_order_of_samples_does_not_matter(order):
    seconds, values = np.arange(100.0, 900.0), np.arange(800.0) / 8
    at = {"forward": np.arange(800), "backward": np.arange(800)[::-1]}.get(order)
    at = np.random.default_rng(1).permutation(800) if at is None else at
    heat = Heat()
    row = heat.row(("n", "gpu0"))
    for part in np.array_split(at, 20):
        heat.add(np.full(len(part), row), seconds[part], values[part])
    plain = Heat()
    plain.row(("n", "gpu0"))
    plain.add(np.zeros(800, np.int64), seconds, values)
    assert heat.count.sum() == 800
    assert (heat.first, heat.width) == (plain.first, plain.width)
    assert np.allclose(heat.means([("n", "gpu0")]), plain.means([("n", "gpu0")]))


def test_damaged_values_are_left_out():
    heat = Heat()
    heat.row(("n", "gpu0"))
    heat.add(
        np.zeros(5, np.int64), np.asarray([5.0, 6.0, -1.0, 1e300, np.nan]), np.asarray([np.nan, 1e9, 5.0, 5.0, 5.0])
    )
    assert not heat.count.any()


def test_lines_are_bounded_and_do_not_mix_nodes():
    fold = fold_of(np.arange(1000.0, 1060.0), [*cores(8, 96), ("algo-3", "cpu7", "CPUUtilization", 100)])
    heat = fold.heats["cpu"]
    rows = heat.ordered()
    lines = lines_of(rows, heat.means(rows), busiest=True)
    assert len(lines) == MAX_LINES == 8 * 8
    assert lines[0].name == "cpu0 to cpu11"
    assert {line.node for line in lines} == {f"algo-{number}" for number in range(1, 9)}
    hot = next(line for line in lines if line.node == "algo-3")
    assert hot.values.max() == 75  # the busiest core of a line: 50 and 100 in the same second
    many = fold_of([1000.0], cores(300, 1)).heats["cpu"]
    assert len(lines_of(many.ordered(), many.means(many.ordered()), busiest=True)) <= MAX_LINES


def test_a_picture_is_bounded_however_long_and_large_the_job():
    fold, chance = HeatFold(), np.random.default_rng(1)
    rows = cores(8, 96) + [
        (f"algo-{node}", f"gpu{gpu}", "GPUUtilization", 0) for node in range(1, 9) for gpu in range(8)
    ]
    for minute in range(0, 480, 2):
        window = Window([1_700_000_000.0 + 60 * minute], rows)
        window.value = chance.uniform(0, 100, len(window.value))
        fold.update(window)
    section = heat_section(fold, 1_700_000_000.0)
    assert len(section.pictures) == 2
    assert all(len(picture.drawing) < 120_000 for picture in section.pictures)
    assert "768 cores" in section.sentences[1]
    assert "busiest core of up to 12" in section.pictures[1].caption


def test_hostile_names_stay_text():
    section = heat_section(
        fold_of([10.0, 11.0], [(NASTY, NASTY, "CPUUtilization", 20), ("b", "c", "CPUUtilization", 5)]), 0
    )
    assert "<img" not in section.pictures[0].drawing
    assert NASTY[:10] in section.sentences[0]  # the template escapes it


def test_values_have_levels():
    assert levels(np.asarray([np.nan, 0.0, 19.9, 20.0, 100.0])) == [-1, 0, 0, 1, 4]


def test_the_page_has_it_after_the_timeline(tmp_path):
    folder = make_job(tmp_path / "job", "--minutes", "2", "--nodes", "2", "--gpus", "2")
    assert data_files(folder)
    end(folder)
    live = LiveJob(str(folder))
    live.poll()
    order = list(live.snapshot.parts)
    assert order.index("heat") == order.index("timeline") + 1
    html = live.snapshot.parts["heat"].html
    assert html.count('role="img"') == 2
    assert "4 GPUs are" in html
