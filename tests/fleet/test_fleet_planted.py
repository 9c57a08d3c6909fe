"""Planted facts in a made-up fleet are found, in fleet.json and on the page."""

import json

import pytest

from benchmarks.fleet import write_fleet
from sm_profiler.cli import main


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    planted = write_fleet(folder / "jobs", 300)
    assert main(["fleet", str(folder / "jobs"), "--out", str(folder / "out")]) == 0
    return planted, json.loads((folder / "out/fleet.json").read_text()), (folder / "out/fleet.html").read_text()


def test_the_slow_machine_of_twenty_jobs_is_named(found):
    planted, fleet, page = found
    assert [host["host"] for host in fleet["hosts"]] == [planted.slow_host]
    assert fleet["hosts"][0]["slow"] == len(planted.slow_jobs) == 20
    assert planted.slow_host in page


def test_loaders_without_workers_are_found_with_their_dollars(found):
    planted, fleet, page = found
    common = next(one for one in fleet["common"] if one["value"] == planted.lazy_user)
    assert (common["key"], common["cause"], common["detail"]) == ("user", "INPUT_BOUND", "num_workers=0")
    own = [job for job in fleet["jobs"] if job["name"] in planted.lazy_jobs]
    lost = sum(loss["usd"] for job in own for loss in job["losses"] if loss["cause"] == "INPUT_BOUND")
    assert common["usd"] == pytest.approx(lost)
    assert common["sentence"] in page


def test_slower_steps_are_found(found):
    planted, fleet, page = found
    assert planted.regressed in [one["name"] for one in fleet["regressions"]]
    assert "code version: a94d002 to 4f0c1e5" in page


def test_failures_and_what_could_not_be_read_are_listed(found):
    planted, fleet, _ = found
    assert {one["name"] for one in fleet["failures"]} >= {*planted.failed, *planted.interrupted}
    assert [job["name"] for job in fleet["jobs"] if job["error"]] == planted.damaged


def test_losses_never_exceed_the_bill(found):
    _, fleet, _ = found
    for job in fleet["jobs"]:
        assert sum(loss["usd"] for loss in job["losses"]) <= job["bill_usd"] + 1e-6
    totals = fleet["totals"]
    assert totals["bill_usd"] == pytest.approx(sum(job["bill_usd"] for job in fleet["jobs"]))
    assert sum(totals["causes"].values()) == pytest.approx(totals["lost_usd"])
