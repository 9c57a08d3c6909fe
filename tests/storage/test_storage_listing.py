"""Listings of many objects: in parallel, in order, a few pages ahead."""

import runpy
import threading
import time
from pathlib import Path

import pytest

from sm_profiler.errors import SourceError
from sm_profiler.source.catalog import Catalog
from sm_profiler.storage import s3
from sm_profiler.storage.s3 import S3Storage

STUB = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "listing_stub.py"))
ListingStub, profile_keys = STUB["ListingStub"], STUB["profile_keys"]
MORE = [
    "p/framework/pevents.json",
    "p/framework/pevents/readme",
    "p/framework/pytorch/cProfile/x/python_stats",
    "p/framework/zz",
    "p/other/1",
    "q/system/1",
]


@pytest.fixture(scope="module")
def keys():
    return [*profile_keys(12_000, hours=10), *MORE]


def listed(keys, prefix):
    return [key[2:] for key in sorted(keys) if key.startswith("p/" + prefix)]


@pytest.mark.parametrize("prefix", ["", "system/", "framework/", "framework/pe", "nothing/"])
def test_all_keys_in_their_order(keys, prefix):
    found = S3Storage("b", "p", client=ListingStub(keys)).list(prefix)
    assert [file.key for file in found] == listed(keys, prefix)


@pytest.mark.parametrize("at", [0, 1, 999, 1000, 3123, 5990])
def test_only_keys_after_one(keys, at):
    expected = listed(keys, "framework/")
    found = S3Storage("b", "p", client=ListingStub(keys)).list("framework/", expected[at])
    assert [file.key for file in found] == expected[at + 1 :]


def test_hours_are_listed_in_parallel_with_few_more_requests(keys):
    together, first = threading.Barrier(5, timeout=60), iter(range(5))

    class Meeting(ListingStub):
        def list_objects_v2(self, **request):
            answer = super().list_objects_v2(**request)
            if "Delimiter" not in request and "pevents/" in request["Prefix"] and next(first, None) is not None:
                together.wait()  # ends only if five hours are listed at once
            return answer

    client = Meeting(keys)
    assert len(list(S3Storage("b", "p", client=client).list("framework/"))) == len(listed(keys, "framework/"))
    assert client.calls <= 6 + 1 + 3 + 10 + 3
    assert client.most <= s3.PARALLEL


def test_few_pages_are_ahead_of_the_reader(keys):
    client = ListingStub(keys)
    client.keys = sorted([*client.keys, *(f"p/system/incremental/2023111500/{number}" for number in range(100_000))])
    found = S3Storage("b", "p", client=client).list("system/")
    for _ in range(2001):
        next(found)
    settled = -1
    while client.calls != settled:
        settled = client.calls
        time.sleep(0.2)
    assert client.calls <= 3 + s3.PARALLEL * (s3.PAGES_AHEAD + 2)
    found.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("sm-profiler-list")]


def test_error_in_one_hour_is_raised(keys):
    class Failing(ListingStub):
        def list_objects_v2(self, **request):
            if "pevents/2023111505" in request["Prefix"]:
                raise ValueError("broken")
            return super().list_objects_v2(**request)

    with pytest.raises(SourceError, match="broken"):
        list(S3Storage("b", "p", client=Failing(keys), attempts=1).list("framework/"))


def test_small_listings_take_one_request():
    client = ListingStub(profile_keys(240, hours=2))
    assert len(list(S3Storage("b", "p", client=client).list("system/"))) == 120
    assert client.calls == 1


@pytest.mark.parametrize("ignored", ["Delimiter", "StartAfter"])
def test_endpoint_that_ignores_an_option(keys, ignored):
    class Simple(ListingStub):
        def list_objects_v2(self, **request):
            request.pop(ignored, None)
            return super().list_objects_v2(**request)

    found = S3Storage("b", "p", client=Simple(keys)).list("framework/")
    assert [file.key for file in found] == listed(keys, "framework/")


def test_catalog_of_a_profile(keys):
    assert len(Catalog(S3Storage("b", "p", client=ListingStub(keys))).refresh()) == 12_000
