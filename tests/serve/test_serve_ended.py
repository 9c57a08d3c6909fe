"""Finished jobs are read in a subprocess, and shown like those that are read here."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from sm_profiler.compact import compact
from sm_profiler.folding import LATE_S
from sm_profiler.monitor.run_state import write_state
from sm_profiler.render.page import page_parts
from sm_profiler.report.compare import compare, render_comparison
from sm_profiler.report.recordings import report_traces
from sm_profiler.report.report_json import to_json
from sm_profiler.serve import live as live_module
from sm_profiler.serve.jobs import find_shown
from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.reading import is_over
from sm_profiler.serve.snapshot import Page, packed_or_none, unpacked
from sm_profiler.source import open_source
from sm_profiler.storage import LocalStorage
from tests.support.serving import copy_files, data_files, end, make_job


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job that ended long ago."""
    folder = make_job(tmp_path_factory.mktemp("ended") / "job", "--minutes", "2", "--scenario", "dataloader-slow")
    end(folder)
    for kind in ("system", "framework"):
        os.utime(folder / kind / "training_job_end.ts", (time.time() - 2 * LATE_S,) * 2)
    return folder


@pytest.fixture(scope="module")
def in_parquet(job, tmp_path_factory):
    columns = tmp_path_factory.mktemp("columns")
    compact(open_source(job, cache=False), LocalStorage(columns), job="a b")
    (found,) = find_shown(str(columns))
    return found.where


@pytest.fixture(params=["json", "parquet"])
def where(request, job, in_parquet):
    return str(job) if request.param == "json" else in_parquet


def shown(snapshot):
    """Return a page without the numbers that change from one report to the next."""
    return {key: part.html for key, part in snapshot.parts.items() if key not in {"quality", "log"}}


def test_a_job_that_is_over_is_shown_as_one_that_is_read_here(where):
    here, there = LiveJob(where), LiveJob(where, use_subprocess=True)
    here.poll()
    there.poll()
    assert (there.snapshot.state, there.snapshot.note) == (here.snapshot.state, here.snapshot.note) == ("ended", "")
    assert shown(there.snapshot) == shown(here.snapshot)
    assert there.snapshot.parts["heat"].html
    for name in ("spark", "gpu", "files", "data_at"):
        assert getattr(there.snapshot, name) == getattr(here.snapshot, name), name
    for name in ("kind", "headline", "label"):
        assert getattr(there.snapshot.main, name) == getattr(here.snapshot.main, name), name
    whole = json.loads(to_json(there.snapshot.whole_report()))
    assert whole["verdict"] == json.loads(to_json(here.snapshot.report))["verdict"]
    assert there.snapshot.report is None
    assert len(there.snapshot.packed) < 1 << 20


@pytest.fixture
def processes(monkeypatch):
    """The processes that are started to read jobs."""
    started, original = [], live_module.start_module

    def start(*arguments, **options):
        started.append(original(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(live_module, "start_module", start)
    return started


def test_no_process_is_left(where, processes):
    live = LiveJob(where, use_subprocess=True)
    live.poll()
    assert [process.poll() for process in processes] == [0]


def test_a_job_that_runs_is_read_here(job, tmp_path):
    folder = tmp_path / "job"
    copy_files(job, folder, data_files(job))
    assert not is_over(str(folder))
    end(folder)
    assert not is_over(str(folder))  # files of other nodes may follow
    write_state(folder)
    assert not is_over(str(folder))
    live = LiveJob(str(folder), use_subprocess=True)
    live.poll()
    assert live.snapshot.report is not None
    write_state(folder, 3)
    assert is_over(str(folder))
    live.poll()
    assert (live.snapshot.state, live.snapshot.report) == ("ended", None)
    assert live.snapshot.whole_report().verdict.main.headline == live.snapshot.main.headline


def test_a_job_that_goes_on_after_its_end_is_followed(job, tmp_path):
    folder, files = tmp_path / "job", data_files(job)
    copy_files(job, folder, files[:-2])
    end(folder)
    for kind in ("system", "framework"):
        os.utime(folder / kind / "training_job_end.ts", (time.time() - 2 * LATE_S,) * 2)
    copy_files(job, folder, files[-2:])
    assert is_over(str(folder))
    later = folder / "system" / "training_job_end.ts"
    later.unlink()
    live = LiveJob(str(folder), use_subprocess=True)
    live.poll()
    assert live.snapshot.parts
    assert live.snapshot.state in {"running", "ended"}


def test_a_run_that_recorded_nothing_and_a_place_that_is_gone_are_named(tmp_path):
    write_state(tmp_path, 1)
    live = LiveJob(str(tmp_path), use_subprocess=True)
    live.poll()
    assert (live.snapshot.state, live.snapshot.note) == ("ended", "the run ended with exit code 1 and recorded nothing")
    live = LiveJob(f"{tmp_path}/job=gone", use_subprocess=True)
    live.poll()
    assert live.snapshot.state == "unreadable"


def test_a_process_that_is_killed_is_an_error_of_its_job_and_tried_again(where, processes, monkeypatch):
    live = LiveJob(where, use_subprocess=True)
    monkeypatch.setattr(live, "_show_written", lambda *_: processes[-1].kill())
    live.poll()
    assert live.snapshot.state == "unreadable"
    assert "ended before its time" in live.snapshot.note
    monkeypatch.undo()
    live.poll()
    assert live.snapshot.state == "ended"


def test_the_process_ends_with_its_server(job, tmp_path):
    (tmp_path / "prices").write_text("null")
    command = [
        sys.executable,
        "-m",
        "sm_profiler.serve.live",
        str(job),
        str(tmp_path / "page"),
        str(tmp_path / "prices"),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdin.close()
    assert process.wait(60) == 1


def test_a_server_of_jobs_that_run_loads_no_arrow(job, tmp_path):
    """It takes 35 MB."""
    folder = tmp_path / "job"
    copy_files(job, folder, data_files(job))
    program = (
        "import sys\n"
        "from sm_profiler.serve.app import create_app\n"
        "from sm_profiler.serve.live import LiveJob\n"
        f"live = LiveJob({str(folder)!r}, use_subprocess=True)\n"
        "live.poll()\n"
        "assert live.snapshot.report is not None\n"
        "sys.exit('pyarrow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_packed_report_is_the_report():
    report = report_traces(Path(__file__).parents[1] / "data" / "gpu_traces" / "sampled2")
    again = unpacked(packed_or_none(report))
    assert page_parts(again) == page_parts(report)
    assert to_json(again) == to_json(report)
    comparison = compare(report, report)
    assert render_comparison(compare(again, report)) == render_comparison(comparison)


def test_a_report_that_cannot_be_packed_is_made_here(where, monkeypatch):
    original = Page.read

    def without_report(*of):
        page = original(*of)
        page.snapshot = replace(page.snapshot, packed=b"")
        return page

    monkeypatch.setattr(Page, "read", without_report)
    monkeypatch.setattr("sm_profiler.serve.live.packed_or_none", lambda _: b"")
    live = LiveJob(where, use_subprocess=True)
    live.poll()
    assert live.snapshot.state == "ended"
    assert live.snapshot.report is live.snapshot.whole_report() is not None


def test_a_job_in_parquet_that_changes_after_its_end_is_read_again(job, tmp_path):
    folder, columns = tmp_path / "job", LocalStorage(tmp_path / "columns")
    copy_files(job, folder, data_files(job)[:-4])
    end(folder)
    compact(open_source(folder, cache=False), columns, job="train")
    (found,) = find_shown(str(tmp_path / "columns"))
    live = LiveJob(found.where, use_subprocess=True)
    live.poll()
    before = live.snapshot
    live.poll()
    assert live.snapshot is before
    copy_files(job, folder, data_files(job))
    compact(open_source(folder, cache=False), columns, job="train")
    live.poll()
    assert live.snapshot.files > before.files
    assert live.snapshot.state == "ended"


def test_an_ended_job_without_data_is_waited_for_in_the_server(tmp_path, monkeypatch):
    (tmp_path / "system").mkdir()
    end(tmp_path)
    for marker in tmp_path.rglob("training_job_end.ts"):
        os.utime(marker, (time.time() - 2 * LATE_S,) * 2)
    assert is_over(str(tmp_path))
    live = LiveJob(str(tmp_path), use_subprocess=True)
    live.poll()
    monkeypatch.setattr(live_module, "start_module", None)  # no process for each poll
    live.poll()
    assert live.snapshot.state == "waiting"


def test_a_job_in_a_folder_whose_name_is_not_utf8_is_shown(job, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    copy_files(job, folder, data_files(job))
    write_state(folder, 0)
    live = LiveJob(str(folder), use_subprocess=True)
    live.poll()
    assert live.snapshot.state == "ended"
    assert live.snapshot.whole_report() is not None


def test_a_closed_job_is_not_read(job, processes):
    live = LiveJob(str(job), use_subprocess=True)
    live.close()
    live.poll()
    assert not processes
    assert not live.snapshot.parts
