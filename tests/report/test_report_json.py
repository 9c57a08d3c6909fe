"""report.json: what is written is read again, old reports stay readable, and the schema is current."""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Evidence, Finding, Gain, Interval, Location
from sm_profiler.errors import SourceError
from sm_profiler.report.report_json import (
    ReportJson,
    plain,
    read_report,
    read_verdict,
    schema,
    to_json,
)
from tests.support.reports import gpu_samples, report_from, training

ROOT = Path(__file__).parents[2]
STORED = sorted((ROOT / "tests" / "data" / "report_json").glob("*.json"))
VALIDATOR = jsonschema.Draft202012Validator(schema())
REPORTS = {
    "healthy": lambda: report_from(training(300)),
    "slow": lambda: report_from(training(300, wait=0.1), gpu_samples(30, 40), instance_type="ml.g5.xlarge"),
    "nothing": report_from,
    "not a number": lambda: report_from((), gpu_samples(float("nan"), 2)),
    "surrogate": lambda: report_from(training(50, node="\ud800")),
}


def test_the_schema_in_the_documentation_is_current():
    """Run `python tools/schemas.py` if it is not."""
    assert json.loads((ROOT / "docs" / "report.schema.json").read_text("utf-8")) == schema()


def test_every_field_is_described_in_the_schema():
    properties = schema()["$defs"]["Finding"]["properties"]
    assert properties["class"]["description"] == "class of the verdict if this finding leads."
    assert all("description" in field for field in properties.values())


def test_the_schema_lists_every_class():
    assert schema()["$defs"]["Class"]["enum"] == sorted(kind.value for kind in Class)


@pytest.mark.parametrize("name", REPORTS)
def test_what_is_written_is_read_again(name):
    report = REPORTS[name]()
    text = to_json(report)
    VALIDATOR.validate(json.loads(text))
    whole = msgspec.json.decode(text, type=ReportJson)
    assert plain(whole) == json.loads(text)
    read = read_report(text.encode())
    assert (plain(read.job), read.verdict) == (plain(whole.job), whole.verdict)
    assert read_verdict(text.encode()) == Finding(*(getattr(read.verdict, key) for key in Finding.__struct_fields__))


def test_a_finding_is_written_under_the_names_of_report_json():
    gain = Gain(Interval(1, 2, 3), Interval(0.1, 0.2, 0.3), Interval(1.1, 1.2, 1.3))
    finding = Finding(
        Class.GC_BOUND, "Slow.", (Evidence("pauses", 3, 1, unit="s"),), "Less garbage.", 0.25, of="job", doubt="few steps",
        where=(Location("train.py", 3, "main", 0.5),), gain=gain,
    )  # fmt: skip
    found = plain(finding)
    assert (found["class"], found["share_of"], found["confidence_reason"]) == ("GC_BOUND", "job", "few steps")
    assert found["label"] == Class.GC_BOUND.label
    assert not {"kind", "of", "doubt"} & set(found)
    assert msgspec.convert(found, Finding) == finding


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_reports_stay_readable(path):
    data = path.read_bytes()
    VALIDATOR.validate(json.loads(data))
    report = read_report(data)
    assert report.job.ranks[0].train_steps > 100
    assert report.verdict.headline == read_verdict(data).headline
    assert report.verdict.label == report.verdict.kind.label


def changed(**fields):
    content = json.loads(STORED[0].read_text())
    return json.dumps(content | fields).encode()


def test_reports_of_later_versions_are_readable_if_only_fields_were_added():
    content = json.loads(STORED[0].read_text())
    verdict = content["verdict"] | {"class": "NEW_CLASS", "new": [1]}
    found = read_report(changed(verdict=verdict, new={"a": 1}, schema_version="1.9"))
    assert (found.verdict.kind.value, found.verdict.label) == ("NEW_CLASS", "NEW_CLASS")
    assert not found.verdict.kind.is_healthy


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (changed(schema_version="2.0"), "version 2.0, not 1.0"),
        (changed(job={"name": 1}), r"Expected `str`, got `int` - at `\$.job.name`"),
        (changed(verdict={"class": "no class", "headline": ""}), "cannot be read"),
    ],
)
def test_other_files_are_refused(data, reason):
    with pytest.raises(SourceError, match=reason):
        read_report(data)
    assert read_verdict(data) is None or b"no class" not in data
