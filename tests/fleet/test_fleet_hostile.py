"""Files of strangers with any value in any place: a row, or an error in one line."""

import copy
import json
import math
import zlib
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler._version import __version__
from sm_profiler.errors import SourceError
from sm_profiler.fleet.analysis import assemble
from sm_profiler.fleet.building import NAME, IndexEntry, read_index, to_parquet, write_index
from sm_profiler.fleet.finding import as_json, read_description
from sm_profiler.fleet.model import FleetJob
from sm_profiler.fleet.rows import read_report, row_of, with_bill
from sm_profiler.fleet.wording import summary
from sm_profiler.report.prices import Prices
from sm_profiler.storage import LocalStorage
from tests.support.fleets import START_S, description, finding, report_json

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/fleet.schema.json").read_text())
PRICES = Prices.of(None)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 2**70, -(2**70), 1e308, -1e308, 1e-320, START_S, 0.5]),
    st.sampled_from(["", "</script>", "\x1b[2J", "\u202e", "x" * 3000, "1e9", "2026-11-01T00:00:00Z", "arn:a/b"]),
    st.sampled_from([[], {}, [[]], {"a": 1}, [None], [1, 2, 3]]),
)


def places(value, path=()):
    """Yield the paths of all values."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def replaced(value, changes):
    found = copy.deepcopy(value)
    for path, odd in changes:
        inner = found
        try:
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = copy.deepcopy(odd)  # which a later change may reach into
        except (IndexError, KeyError, TypeError):
            continue  # the place went with an earlier change
    return found


def row(report, described):
    described = read_description(json.dumps(described).encode())
    json.dumps(as_json(described), allow_nan=False)
    return with_bill(row_of(report, described, FleetJob("job", judged="report")), PRICES)


def check(job):
    """Check what every row promises, alone and in a fleet."""
    assert job.bill_usd is None or (0 <= job.lost_usd <= job.bill_usd and math.isfinite(job.bill_usd))
    assert job.lost_s <= (job.billable_s or 0.0)
    fleet = assemble([job, job])
    data = json.loads(fleet.to_json())
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    assert summary(fleet).replace("\n", "").isprintable()
    to_parquet(fleet.jobs)


ROWS = [{"Status": name, "StartTime": START_S, "EndTime": START_S + 60} for name in ("Starting", "Training")]
DESCRIBED = description(
    "a-1", SecondaryStatusTransitions=ROWS, Tags=[{"Key": "team", "Value": "nlp"}], Environment={"GIT_COMMIT": "a" * 40}
)
REPORT = report_json(
    "a-1", also=[finding("INPUT_BOUND", 60.0)], hosts=["i-1", "i-2"], slow=1, loader={"num_workers": 0}
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(places(DESCRIBED))[1:]), ODD), max_size=4))
def test_any_description(changes):
    check(row(read_report(json.dumps(REPORT).encode()), replaced(DESCRIBED, changes)))


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(places(REPORT))[1:]), ODD), max_size=4))
def test_any_report(changes):
    try:
        report = read_report(json.dumps(replaced(REPORT, changes)).encode())
    except SourceError:
        return
    check(row(report, {}))
    check(row(report, DESCRIBED))


@pytest.mark.parametrize("data", [b"", b"[]", b"[" * 100_000, b"\xff\xfe", b'{"a": 1e999', b"null"])
def test_descriptions_that_are_not_objects(data):
    with pytest.raises(SourceError):
        read_description(data)


def test_an_index_whose_content_is_not_that_of_an_index_is_not_read(tmp_path):
    storage = LocalStorage(tmp_path)
    write_index(storage, {str(at): IndexEntry("i", FleetJob(str(at), judged="report")) for at in range(3)})
    assert len(read_index(storage)[0]) == 3
    for content in (
        {"version": __version__, "entries": {"a": {"identity": "i", "row": {"name": 7}}}},
        {"version": __version__},
        b"x" * 10,
    ):
        storage.write(NAME, zlib.compress(msgspec.msgpack.encode(content)))
        found, why = read_index(storage)
        assert not found
        assert "is damaged" in why


def test_names_that_are_not_unicode_are_kept(tmp_path):
    write_index(LocalStorage(tmp_path), {"job \udcff": IndexEntry("file \udcff", FleetJob("a"))})
    assert read_index(LocalStorage(tmp_path))[0].popitem()[1].row == FleetJob("a")
