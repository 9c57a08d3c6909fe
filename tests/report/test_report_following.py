"""`sm-profiler report --follow`: waits for the first data, reports early, and ends when the run has."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from sm_profiler.cli import main
from sm_profiler.cli.main import newest_run
from sm_profiler.cli.report import follow
from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.monitor.run_state import STATE_FILE, read_state, remove_state, write_state
from sm_profiler.report import build_report
from sm_profiler.serve.reading import JobReader
from sm_profiler.source import open_source
from sm_profiler.source.open_files import open_files
from tests.support.jobs import make_job


def without_end(folder):
    for marker in END_MARKERS:
        (folder / marker).unlink(missing_ok=True)
    return folder


@pytest.fixture
def job(tmp_path):
    return without_end(make_job(tmp_path / "job", "--minutes", "2", "--no-end-marker"))


def followed(folder, sleep=pytest.fail, out=None, **clock):
    return follow(JobReader(str(folder)), out, sleep=sleep, **clock)


def test_waits_until_an_empty_folder_contains_data(job, tmp_path, capsys):
    folder = tmp_path / "early"
    folder.mkdir()

    def arrive(_seconds):
        shutil.copytree(job, folder, dirs_exist_ok=True)
        write_state(folder, 0)

    assert followed(folder, arrive).metrics.ranks
    assert "waiting for the first complete data" in capsys.readouterr().err


def test_does_not_wait_for_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(SourceError, match="is not a folder"):
        followed(tmp_path / "typo" / "x")


def test_does_not_wait_for_a_run_that_ended_without_data(tmp_path):
    write_state(tmp_path, 3)
    with pytest.raises(SourceError, match="ended with exit code 3"):
        followed(tmp_path)


@pytest.mark.first(1)
@pytest.mark.parametrize("how", ["ended", "killed"])
def test_ends_with_the_run_without_an_end_marker(job, tmp_path, capsys, how):
    if how == "ended":
        write_state(job, 130)
    else:
        child = subprocess.run([sys.executable, "-c", f"from pathlib import Path; from sm_profiler.monitor.run_state import write_state; write_state(Path({str(job)!r}))"], check=True)  # fmt: skip
        assert child.returncode == 0
        assert read_state(job).exit_code is None
    begun = time.monotonic()
    assert main(["report", str(job), "--follow", "--out", str(tmp_path / "out")]) == 0
    assert time.monotonic() - begun < 60
    errors = capsys.readouterr().err
    assert ("was ended by SIGINT" if how == "ended" else "ended without an exit code") in errors
    assert (tmp_path / "out" / "report.json").exists()


def opened(job):
    """Rename the files of a job as if they were still written."""
    for path in list(job.rglob("*.json")):
        if path.parent.parent.name == "incremental":
            path.rename(path.parent.parent / f"{path.name}.tmp")
        elif path.parent.parent.name == "pevents":
            source = path.name.partition("_")[2].removesuffix(".json")
            path.rename(
                path.parent.parent / f"{source}_{os.getpid()}_{path.stat().st_ino}_{path.stat().st_mtime_ns}.json.tmp"
            )
    return job


def test_a_preliminary_report_uses_open_files(job, tmp_path, capsys):
    write_state(opened(job))
    pauses, seen = [], []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 1:
            seen.append(json.loads((tmp_path / "out" / "report.json").read_text()))
            for path in (path for path in job.rglob("*.tmp") if path.stat().st_size):
                path.write_bytes(path.read_bytes())  # changed, but too soon for another report
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        followed(job, sleep, str(tmp_path / "out"), clock=lambda: float(len(pauses)))
    assert seen[0]["verdict"]["class"] == "COMPUTE_BOUND"
    assert capsys.readouterr().err.count("preliminary report") == 1


def test_no_link_is_followed(job, tmp_path):
    (tmp_path / "secret").write_text("[]")
    write_state(opened(job))
    (job / "system" / "secret.json.tmp").symlink_to(tmp_path / "secret")
    assert all(path.name != "secret.json.tmp" for path in open_files(job))


def test_follows_the_run_that_is_not_over(job, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(job, runs / "old")
    write_state(runs / "new")
    assert newest_run(str(runs)) == str(runs / "old")
    assert newest_run(str(runs), running=True) == str(runs / "new")


@pytest.mark.parametrize("compat", [None, "service"])
def test_ends_with_the_report_of_the_whole_job(job, compat):
    whole = build_report(open_source(job, cache=False), compat=compat)
    write_state(job, 0)
    found = follow(JobReader(str(job), compat=compat), None, sleep=pytest.fail)
    assert found.rules == whole.rules
    assert found.verdict == whole.verdict


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "1", "started": 1, "exit_code": null}', "[" * 100_000])
def test_ignores_damaged_state_files(tmp_path, text):
    (tmp_path / STATE_FILE).parent.mkdir()
    (tmp_path / STATE_FILE).write_text(text)
    assert read_state(tmp_path) is None
    remove_state(tmp_path)
    assert not (tmp_path / STATE_FILE).exists()


def test_state_of_this_process_is_not_over(tmp_path):
    write_state(tmp_path)
    assert not read_state(tmp_path).is_over
    assert open_source(make_job(tmp_path / "job", "--minutes", "1"), cache=False).files


@pytest.mark.slow
def test_a_run_stopped_with_ctrl_c_is_over(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import time\ntime.sleep(120)\n")
    root, config = tmp_path / "profile", tmp_path / "profilerconfig.json"
    config.write_text(
        json.dumps({"ProfilingIntervalInMilliseconds": 500, "ProfilingParameters": {"LocalPath": str(root)}})
    )
    command = [sys.executable, "-m", "sm_profiler", "run", "--config", str(config), str(script)]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list(root.glob("system/**/*.tmp")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not read_state(root).is_over
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert read_state(root).exit_code == 130
    assert all((root / marker).exists() for marker in END_MARKERS)
    report = [sys.executable, "-m", "sm_profiler", "report", "profile", "--follow"]
    done = subprocess.run(report, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The script was stopped.\nINCONCLUSIVE")
