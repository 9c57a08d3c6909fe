"""A job's page is shown at once when it is opened again."""

import os
import zlib

import attrs
import pytest

from sm_profiler.diagnosis.model import Finding
from sm_profiler.report import Class
from sm_profiler.serve import snapshot
from sm_profiler.serve.jobs import Found
from sm_profiler.serve.listing import row_of
from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.snapshot import Part, Snapshot, load, save
from tests.support.serving import data_files, make_job

MAIN = Finding(Class.INPUT_BOUND, "x")
PARTS = {"verdict": "<p>x</p>", "glance": "", "log": "<p>y</p>"}
STATE = Snapshot(
    5, "running", "", {key: Part(html, 3, 9.0) for key, html in PARTS.items()}, MAIN, spark=(0.1, 0.2), files=7
)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("kept") / "job", "--minutes", "2", "--scenario", "dataloader-slow")


def kept_file(tmp_path, where="s3://bucket/job"):
    save(where, STATE)
    return snapshot._PAGES._path(snapshot._name(where))


def test_what_is_kept_is_found_again(tmp_path):
    kept_file(tmp_path)
    again = load("s3://bucket/job")
    assert (again.state, again.spark, again.files) == ("reading", (0.1, 0.2), 7)
    assert {key: part.html for key, part in again.parts.items()} == {"verdict": "<p>x</p>", "glance": ""}
    assert (again.main, again.saved) == (None, Finding(Class.INPUT_BOUND, "x"))
    assert load("s3://bucket/other") is None


def test_a_page_shows_the_last_state_until_all_is_read(job):
    first = LiveJob(str(job))
    assert first.snapshot.parts == {}
    first.poll()
    again = LiveJob(str(job))
    assert {key: part.html for key, part in again.snapshot.parts.items()} == {
        key: part.html for key, part in first.snapshot.parts.items()
    }
    assert again.snapshot.state == "reading"
    assert "as of" in again.snapshot.note
    assert again.snapshot.spark == first.snapshot.spark
    row = row_of(Found("job", str(job)), again.snapshot)
    assert (row.result, row.mood) == ("Waiting for data", "issue")
    again._progress()  # a part of the data would be less than what is shown
    assert again.snapshot.report is None
    again.poll()
    assert again.snapshot.state == "running"
    assert again.snapshot.report is not None


def test_a_later_folder_of_the_same_name_is_another_job(tmp_path):
    folder, other = tmp_path / "job", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    save(str(folder), STATE)
    assert load(str(folder)) is not None
    folder.rmdir()
    other.rename(folder)
    assert load(str(folder)) is None


@pytest.mark.parametrize("damage", ["cut", "noise", "text", "version", "bomb", "shared", "link"])
def test_damage_and_files_that_others_may_write_are_passed_over(tmp_path, monkeypatch, damage):
    path = kept_file(tmp_path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:20])
    elif damage == "noise":
        path.write_bytes(b"\xff" * 100)
    elif damage == "text":
        path.write_bytes(zlib.compress(b'{"version": []}'))
    elif damage == "bomb":
        monkeypatch.setattr(snapshot, "MAX_BYTES", 10)
    elif damage == "version":
        monkeypatch.setattr(snapshot, "__version__", "0.0")
    elif damage == "shared":
        path.parent.chmod(0o777)
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    assert load("s3://bucket/job") is None


def test_the_oldest_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "_PAGES", attrs.evolve(snapshot._PAGES, files=3))
    for number in range(5):
        save(f"s3://bucket/job-{number}", STATE)
    assert len(list(kept_file(tmp_path).parent.glob("*.page"))) == 3


def test_nothing_is_kept_if_copies_are_switched_off(monkeypatch, job):
    monkeypatch.setenv("SM_PROFILER_CACHE", "off")
    save(str(job), STATE)
    assert load(str(job)) is None
    assert data_files(job)


def test_all_files_together_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "_PAGES", attrs.evolve(snapshot._PAGES, total_bytes=1))
    assert not kept_file(tmp_path).exists()
    assert load("s3://bucket/job") is None


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path):
    path = kept_file(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert load("s3://bucket/job") is None
