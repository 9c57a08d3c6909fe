"""A table of files does what a dictionary of them does."""

import random

import pytest

from sm_profiler.formats import layout
from sm_profiler.source.catalog import Catalog
from sm_profiler.source.item_table import ItemTable
from sm_profiler.source.item_table import item_of as file_of
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
    info, file = FileInfo(key, draw.randrange(1 << 40), at + draw.random(), etag), layout.parse_path(key)
    return Catalog(None)._detailed(info, file) if isinstance(file, layout.DetailedTrace) else file_of(info, file)


def put(table, item):
    """Add or change a file."""
    number = table.number_of(item.info.key)
    if isinstance(item.file, layout.DetailedTrace):
        return table.add_object(item) if number is None else table.change_object(number, item)
    return table.add(item.info, item.file) if number is None else table.change(number, item.info, item.file)


@pytest.mark.parametrize("seed", range(4))
def test_equals_a_dictionary(seed, monkeypatch):
    monkeypatch.setattr("sm_profiler.source.item_table._UNSORTED", 16)
    draw, table, expected = random.Random(seed), ItemTable(), {}  # no secret
    for number in range(600):
        item = item_of(draw)
        key = item.info.key
        assert table.find(key) == expected.get(key)
        put(table, item)
        expected[key] = item
        assert len(table) == len(expected)
        if number % 20 == 0:
            copied, table = table, table.copy()
            put(copied, item_of(draw))
            found, wanted = table.ordered(), sorted(expected.values(), key=lambda one: one.order)
            assert found == wanted
            assert [found[place] for place in range(len(found))] == wanted
            assert found[2:5] == wanted[2:5]
            assert [table.number_of(one.info.key) for one in wanted] == found.numbers.tolist()
            assert found.at_us.tolist() == [one.at_us for one in wanted]
            assert found.sizes.tolist() == [one.info.size for one in wanted]
            assert found.hosts.tolist() == [one.host for one in wanted]
            assert found.is_system.tolist() == [one.is_system for one in wanted]
            assert found.detailed == [one for one in wanted if isinstance(one.file, layout.DetailedTrace)]
            half = list(range(0, len(found), 2))
            assert found.chosen(half) == [wanted[place] for place in half]
    assert table.find("missing") is None


def test_files_of_usual_names_are_no_objects():
    table = ItemTable()
    for number in range(5000):
        for path in (
            layout.SystemFile("algo-1", MINUTE + 60 * number),
            layout.TraceFile(10**15 + number, "0-algo-1", "trace"),
        ):
            table.add(FileInfo(path.path, 1, 2.0, ""), path)
    assert len(table.ordered()) == 10_000
    assert not list(table.objects)
    assert sum(column.itemsize for column in table._columns.values()) < 40


def test_files_come_back_from_their_columns():
    draw, table = random.Random(0), ItemTable()  # no secret
    for _ in range(300):
        put(table, item_of(draw))
    again = ItemTable.of_columns(table.columns())
    objects = {item.info.key for item in table.objects}
    assert list(again.ordered()) == [item for item in table.ordered() if item.info.key not in objects]
