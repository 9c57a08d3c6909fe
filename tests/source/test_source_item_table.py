"""A table of packed items does what a dictionary of them does."""

import random

import numpy as np
import pytest

from sm_profiler.formats import layout
from sm_profiler.source.catalog import Catalog
from sm_profiler.source.item_table import ItemTable
from sm_profiler.storage import FileInfo

MINUTE = 1_700_000_040
FOLDERS = ("system/incremental/2023111422", "system/incremental/2023111423", "system/elsewhere")
TRACES = ("framework/pevents/2023111422", "framework/more/pevents/2023111422")


def item_of(draw):
    at = MINUTE + draw.randrange(90)
    trace = (
        f"{draw.choice(TRACES)}/{at * 1_000_000 + draw.randrange(2)}_{draw.randrange(3)}-algo-{draw.randrange(1, 3)}"
    )
    key = draw.choice([
        f"{draw.choice(FOLDERS)}/{at}.algo-{draw.randrange(1, 4)}.json",
        f"{trace}_model_timeline.json",
        f"{trace}_pythontimeline.json",
        f"{trace}_4711_pythontimeline.json",  # not packed: a number that no part of the name is
        f"framework/pytorch/detailed_profiling/2023111422/{draw.randrange(9):09d}/a.trace.json.gz",
    ])  # fmt: skip
    etag = draw.choice(["", "", '"' + "ab" * 16 + '"', "é", "x" * 200])
    return Catalog(None)._item(FileInfo(key, draw.randrange(1 << 40), at + draw.random(), etag), layout.parse_path(key))


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_equals_a_dictionary(seed, marks, monkeypatch):
    monkeypatch.setattr("sm_profiler.source.item_table._PACK_AT", 16)
    monkeypatch.setattr("sm_profiler.source.item_table._LOOSE", 4)
    draw, table, expected = random.Random(seed), ItemTable(), {}  # no secret
    if marks:
        known = random.Random(seed)  # some of the items that are added below, some with other sizes
        table = ItemTable({one.info.key: one for one in (item_of(known) for _ in range(400))}.values()).marks()
        assert list(table) == []
    for number in range(600):
        item = item_of(draw)
        key = item.info.key
        assert (key in table) == (key in expected)
        assert table.get(key) == expected.get(key)
        if draw.random() < 0.7:
            table.add(item)
            expected[key] = item
        elif draw.random() < 0.5:
            table.discard(item)
            expected.pop(key, None)
        else:
            assert table.pop(key, None) == expected.pop(key, None)
        assert len(table) == len(expected)
        if number % 20 == 0:
            copied, table = table, table.copy()
            for key in list(copied):
                del copied[key]
            assert len(copied) == 0
            found, wanted = table.ordered(), sorted(expected.values(), key=lambda one: one.order)
            assert found == wanted
            assert [found[place] for place in range(len(found))] == wanted
            assert found.at_us.tolist() == [one.at_us for one in wanted]
            assert found.sizes.tolist() == [one.info.size for one in wanted]
            assert found.is_system.tolist() == [one.is_system for one in wanted]
            assert list(found.keys()) == [one.info.key for one in wanted]
            assert found.detailed == [one for one in wanted if isinstance(one.file, layout.DetailedTrace)]
            half = list(range(0, len(found), 2))
            assert found.chosen(half) == [wanted[place] for place in half]
    with pytest.raises(KeyError):
        del table["missing"]


def test_files_of_usual_names_are_no_objects():
    catalog, table = Catalog(None), ItemTable()
    for number in range(5000):
        for path in (
            layout.SystemFile("algo-1", MINUTE + 60 * number),
            layout.TraceFile(10**15 + number, "0-algo-1", "trace"),
        ):
            table.add(catalog._item(FileInfo(path.path, 1, 2.0, ""), path))
    assert len(table.ordered()) == 10_000
    assert not table._objects
    assert not table._odd


def test_items_that_another_table_holds_take_no_memory():
    catalog = Catalog(None)
    files = [layout.SystemFile("algo-1", MINUTE + 60 * number) for number in range(5000)]
    table = ItemTable(catalog._item(FileInfo(path.path, 1, 2.0, "ab" * 16), path) for path in files)
    marks = table.marks()
    for item in table.ordered():
        marks.put(item)
    assert marks._packed is table._packed
    assert not marks._objects
    assert marks.ordered() == table.ordered()


def test_items_in_the_order_of_time_are_packed_soon_and_the_same(monkeypatch):
    monkeypatch.setattr("sm_profiler.source.item_table._PACK_AT", 8)
    draw = random.Random(0)  # no secret
    items = sorted(
        {one.info.key: one for one in (item_of(draw) for _ in range(400))}.values(), key=lambda one: one.order
    )
    table, later = ItemTable(most=16), ItemTable(items)
    for item in items:
        table.put(item)
        assert len(table._objects) <= 16
    assert list(table.ordered()) == items == list(later.ordered())
    copied = later.copy()
    assert copied._packed is later._packed
    assert list(copied.ordered()) == items
    assert copied.ordered()._packed is later.ordered()._packed


def test_late_items_leave_the_ones_before_them_in_place(monkeypatch):
    """Two nodes whose files come a little out of order: only what overlaps is sorted again."""
    monkeypatch.setattr("sm_profiler.source.item_table._PACK_AT", 8)
    catalog, table, rows, lexsort = Catalog(None), ItemTable(most=16), [], np.lexsort
    monkeypatch.setattr(np, "lexsort", lambda keys: rows.append(len(keys[0])) or lexsort(keys))
    files = [layout.SystemFile("algo-1", MINUTE)]
    for number in range(3, 500):
        files += [layout.SystemFile("algo-1", MINUTE + number), layout.SystemFile("algo-2", MINUTE + number - 3)]
    items = [catalog._item(FileInfo(file.path, 7, 2.0, ""), file) for file in files]
    for item in items:
        table.put(item)
    assert len(rows) > 50
    assert max(rows) < 40
    assert list(table.ordered()) == sorted(items, key=lambda one: one.order)
