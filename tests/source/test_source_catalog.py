"""The catalog's work at a refresh depends on the new files, not on those that are known."""

import random
import sys

import pytest

from sm_profiler.source.catalog import Catalog, _clusters
from sm_profiler.storage import FileInfo

MINUTE = 1_700_000_040
DAY = 24 * 60 * 60


class Listing:
    """A storage whose files are set by the test."""

    uri = "memory"
    parallel_reads = 1

    def __init__(self):
        self.infos = {}

    def add(self, at, host=1, etag="1"):
        hour = "2023111422" if at < MINUTE + 3600 else "2099010100"
        key = f"system/incremental/{hour}/{at}.algo-{host}.json"
        self.infos[key] = FileInfo(key, 10, float(min(at, 1_760_000_000)), etag)
        return key

    def list(self, prefix="", start_after=None):
        for key in sorted(self.infos):
            if key.startswith(prefix) and key > (start_after or ""):
                yield self.infos[key]


def names(items):
    return [item.info.key.rpartition("/")[2] for item in items]


def test_reading_order_is_kept_while_files_come_late_and_change():
    draw, storage = random.Random(0), Listing()  # no secret
    catalog = Catalog(storage)
    minutes = [MINUTE + 60 * number for number in range(40)]
    draw.shuffle(minutes)
    for number, at in enumerate(minutes):
        storage.add(at, host=number % 3 + 1)
        if number % 5 == 0:
            storage.add(draw.choice(minutes[: number + 1]), etag=str(number))
        storage.infos = dict(storage.infos)
        assert len(catalog._list(everything=True))
        assert catalog.ordered == sorted(catalog.ordered, key=lambda item: item.order)
        assert {item.info.key: item.info for item in catalog.ordered} == storage.infos
    assert not catalog.strays


def test_a_stray_becomes_the_job_once_it_has_more_files():
    storage = Listing()
    storage.add(MINUTE)
    storage.add(MINUTE + 60)
    catalog = Catalog(storage)
    assert len(catalog.refresh()) == 2
    storage.add(MINUTE - 300 * DAY)
    assert len(catalog._list(everything=True)) == 0
    assert list(catalog.strays.values()) == ["named by a time far from the job's other files"]
    later = [storage.add(MINUTE - 300 * DAY + 60 * number) for number in range(1, 3)]
    found = catalog.table.ordered(catalog._list(everything=True))
    assert {item.info.key for item in found} == {
        *later,
        f"system/incremental/2023111422/{MINUTE - 300 * DAY}.algo-1.json",
    }
    assert len(catalog.strays) == 2
    assert names(catalog.ordered) == sorted(names(found))


def test_files_between_two_distant_groups_join_them():
    storage = Listing()
    for at in (MINUTE, MINUTE + 60, MINUTE - 150 * DAY):
        storage.add(at)
    catalog = Catalog(storage)
    assert len(catalog.refresh()) == 2
    storage.add(MINUTE - 75 * DAY)
    found = catalog.table.ordered(catalog._list(everything=True))
    assert len(found) == 2
    assert not catalog.strays
    assert len(catalog.ordered) == 4


def test_clusters_are_those_of_a_sort():
    draw = random.Random(1)  # no secret
    for _ in range(50):
        storage, times = Listing(), [draw.randrange(0, 3000 * DAY) for _ in range(draw.randrange(1, 40))]
        for at in times:
            storage.add(at)
        catalog = Catalog(storage)
        catalog._list(everything=True)
        expected, last = [], None
        for at in sorted(set(times)):
            if last is None or at - last > 100 * DAY:
                expected.append(set())
            expected[-1].add(at * 10**6)
            last = at
        found = [(cluster.count, cluster.first_us, cluster.last_us) for cluster in _clusters(catalog.table)]
        assert found == [(len(each), min(each), max(each)) for each in expected]


@pytest.mark.parametrize("late", [False, True], ids=["new", "late"])
def test_work_of_a_refresh_does_not_grow_with_the_known_files(late):
    def work(known):
        storage = Listing()
        for number in range(known):
            storage.add(MINUTE - 60 * number, host=1)
        catalog = Catalog(storage)
        catalog.refresh()
        assert len(catalog.ordered) == known
        storage.infos = {}
        storage.add(MINUTE - 60 * (known // 2) if late else MINUTE + 60, host=2)
        calls = 0

        def count(_frame, event, _argument):
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            assert len(catalog._list(everything=True)) == 1
            ordered = catalog.ordered
        finally:
            sys.setprofile(None)
        assert len(ordered) == known + 1
        return calls

    work(100)  # caches
    assert work(2000) < 2 * work(200)
