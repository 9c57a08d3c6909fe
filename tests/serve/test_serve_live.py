"""A job is followed while it is watched: new files are read once, and errors stay with their job."""

import copy
import shutil
import threading

import pytest
from msgspec.structs import replace

from sm_profiler.compact import compact
from sm_profiler.metrics.step_fold import StepFold
from sm_profiler.monitor.run_state import write_state
from sm_profiler.render.page import page_parts
from sm_profiler.report import build_report
from sm_profiler.serve import live as live_module
from sm_profiler.serve.app import LOOK_S
from sm_profiler.serve.jobs import find_shown
from sm_profiler.serve.listing import sparks
from sm_profiler.serve.live import LOCAL_POLL_S, REPORT_SHARE, LiveJob, pause_after
from sm_profiler.serve.pages import state_line
from sm_profiler.serve.reading import JobReader, later_files_of
from sm_profiler.source import open_source
from sm_profiler.source.parquet.storage import ParquetStorage
from sm_profiler.storage import LocalStorage
from tests.support.serving import copy_files, data_files, end, make_job, until


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("live") / "job", "--minutes", "4", "--scenario", "dataloader-slow")


def steps(report):
    return sum(int(rank.train.sum()) for rank in report.metrics.ranks)


def test_the_report_grows_with_the_files_and_ends_as_the_whole_report(job, tmp_path):
    folder, files = tmp_path / "job", data_files(job)
    reader, seen = JobReader(str(folder)), []
    half = len(files) // 2
    copy_files(job, folder, files[:half])
    assert reader.read()
    seen.append(steps(reader.report()))
    assert not reader.read()
    copy_files(job, folder, files[half:])
    assert reader.read()
    seen.append(steps(reader.report()))
    end(folder)
    assert reader.read()
    assert reader.over
    report, whole = reader.report(), build_report(open_source(folder, cache=False))
    assert 0 < seen[0] < seen[1] == steps(whole)
    assert report.verdict == whole.verdict
    assert not report.metrics.running


def test_a_run_is_over_once_it_has_its_exit_code(job, tmp_path):
    """The end markers come before."""
    folder = tmp_path / "job"
    copy_files(job, folder, data_files(job))
    write_state(folder)
    end(folder)
    reader = JobReader(str(folder))
    reader.read()
    assert not reader.over
    write_state(folder, 3)
    assert reader.read()
    assert (reader.over, reader.outcome) == (True, "ended with exit code 3")


def test_each_file_is_read_once(job, tmp_path, monkeypatch):
    folder, files = tmp_path / "job", data_files(job)
    copy_files(job, folder, files[:-2])
    reader = JobReader(str(folder))
    reader.read()
    read = []
    storage = reader._source.storage
    original = storage.read
    monkeypatch.setattr(storage, "read", lambda key, *rest: (read.append(key), original(key, *rest))[1])
    copy_files(job, folder, files[-2:])
    reader.read()
    reader.report()
    reader.report()
    assert sorted(read) == sorted(str(path.relative_to(job)) for path in files[-2:])


def test_work_of_a_report_does_not_grow_with_the_files_before(job, tmp_path, monkeypatch):
    """Neither are all files listed again, nor is each minute of each process copied."""
    folder, files = tmp_path / "job", data_files(job)
    copy_files(job, folder, files)
    reader = JobReader(str(folder))
    monkeypatch.setattr("sm_profiler.serve.reading.JOIN_AFTER", 1)
    reader.read()
    listed = []
    storage = reader._source.storage
    original = storage.list
    monkeypatch.setattr(storage, "list", lambda *args: (listed.append(args), original(*args))[1])
    reader.report()
    assert listed == []
    (steps,) = (fold for fold in reader._state.folds if isinstance(fold, StepFold))
    assert len(steps._chunks) == 1
    assert copy.deepcopy(steps)._chunks == steps._chunks


def test_a_report_leaves_the_state_as_it_was(job):
    reader = JobReader(str(job))
    reader.read()
    first, second = reader.report(), reader.report()
    assert first.verdict == second.verdict
    assert steps(first) == steps(second)


def test_shows_files_that_are_still_written(job, tmp_path):
    folder = tmp_path / "job"
    for path in data_files(job):
        copy_files(job, folder, [path])
        target = folder / path.relative_to(job)
        if "pevents" in path.parts:
            source, _, kind = path.stem.partition("_")[2].partition("_")
            opened = folder / "framework" / "pevents" / f"{source}_{kind}_1_0_{path.stem.partition('_')[0]}.json.tmp"
            target.rename(opened)
        else:
            target.rename(target.with_name(target.name + ".tmp"))
    reader = JobReader(str(folder))
    assert reader.read()
    assert steps(reader.report()) > 0
    assert not reader.read()


def test_waits_for_a_job_without_data(tmp_path):
    live = LiveJob(str(tmp_path))
    live.poll()
    assert live.snapshot.state == "waiting"


def test_an_error_is_shown_and_ends_with_its_cause(job, tmp_path):
    live = LiveJob(str(tmp_path / "missing"))
    live.poll()
    assert live.snapshot.state == "unreadable"
    assert "is not a folder" in live.snapshot.note
    copy_files(job, tmp_path / "missing", data_files(job))
    live.poll()
    assert live.snapshot.state == "running"
    assert live.snapshot.note == ""


def test_a_job_without_an_end_and_without_news_may_be_over(job, tmp_path):
    """The list called it ended, and its page stated that it was running, with data three years old."""
    folder = tmp_path / "job"
    copy_files(job, folder, data_files(job))
    live = LiveJob(str(folder))
    live.poll()
    assert state_line(live.snapshot) == "running, or ended without a record of it"
    assert not live.snapshot.report.metrics.running
    write_state(folder)  # the process that runs it is known
    live = LiveJob(str(folder))
    live.poll()
    assert state_line(live.snapshot) == "running"
    assert live.snapshot.report.metrics.running


def test_a_job_whose_folder_is_removed_is_not_shown_as_running(job, tmp_path):
    folder, files = tmp_path / "job", data_files(job)
    copy_files(job, folder, files)
    live = LiveJob(str(folder))
    live.poll()
    assert live.snapshot.state == "running"
    shutil.rmtree(folder)
    live.poll()
    assert (live.snapshot.state, live.snapshot.note) == ("unreadable", "its folder was removed")
    live.poll()
    copy_files(job, folder, files[: len(files) // 2])  # another job in its place
    live.poll()
    assert live.snapshot.state == "running"
    assert live.snapshot.files == len(files) // 2


def test_an_internal_error_stays_with_its_job(job, monkeypatch):
    live = LiveJob(str(job))
    monkeypatch.setattr("sm_profiler.serve.live.page_parts", lambda _: 1 / 0)
    live.poll()
    assert live.snapshot.state == "unreadable"
    assert "ZeroDivisionError" in live.snapshot.note
    monkeypatch.undo()
    live.poll()
    assert live.snapshot.state == "running"
    assert steps(live.snapshot.report) == steps(build_report(open_source(job, cache=False)))


def test_only_changed_parts_are_sent_again(job, tmp_path, monkeypatch):
    monkeypatch.setattr("sm_profiler.metrics.metric_folds.SILENT_S", 1e12)  # its data is old
    folder, files = tmp_path / "job", data_files(job)
    copy_files(job, folder, files)
    live = LiveJob(str(folder), clock=iter(range(0, 10**6, 100)).__next__)
    live.poll()
    first = live.snapshot
    assert list(first.parts_since(0)) == [
        key for key, html in page_parts(first.report).items() if html or key in first.parts
    ]
    end(folder)
    live.poll()
    assert live.snapshot.state == "ended"
    changed = live.snapshot.parts_since(first.version)
    assert "glance" in changed
    assert "loader" not in changed


def test_a_thread_follows_while_there_is_a_viewer(job, tmp_path):
    folder, files = tmp_path / "job", data_files(job)
    copy_files(job, folder, files[: len(files) // 2])
    live = LiveJob(str(folder), linger_s=0.0)
    try:
        assert live.watch().state == "reading"
        before = until(lambda: live.watch().report)
        copy_files(job, folder, files[len(files) // 2 :])
        until(lambda: steps(live.watch().report) > steps(before))
        until(lambda: not live.is_followed)
        assert live.watch().report
        end(folder)
        until(lambda: live.watch().state == "ended")
        until(lambda: not live.is_followed)
        assert live.watch().state == "ended"
        assert not live.is_followed
    finally:
        live.close()


def test_a_resumed_job_is_followed_again(job, tmp_path):
    folder, files, now = tmp_path / "job", data_files(job), [0.0]
    copy_files(job, folder, files[: len(files) // 2])
    end(folder)
    live = LiveJob(str(folder), clock=lambda: now[0])
    live.poll()
    before = live.snapshot
    assert before.state == "ended"
    assert live.watch().state == "ended"
    assert not live.is_followed  # it looks again after some seconds
    live.poll()
    assert live.snapshot is before
    for marker in folder.rglob("training_job_end.ts"):  # as the monitor of the next attempt does
        marker.unlink()
    copy_files(job, folder, files[len(files) // 2 :])
    now[0] = 100.0
    live.poll()
    assert live.snapshot.state == "running"
    assert steps(live.snapshot.report) > steps(before.report)
    end(folder)
    now[0] = 200.0
    live.poll()
    assert live.snapshot.state == "ended"


def test_later_files_resume_a_job_on_s3(job, tmp_path):
    folder, files = tmp_path / "job", data_files(job)
    copy_files(job, folder, files[: len(files) // 2])
    end(folder)
    is_resumed = later_files_of(open_source(folder, cache=False))
    assert not is_resumed()
    copy_files(job, folder, files[len(files) // 2 :])
    assert is_resumed()


def test_the_list_draws_step_time_and_gpu_use(tmp_path):
    folder = make_job(tmp_path / "job", "--minutes", "2", "--gpus", "2")
    live = LiveJob(str(folder))
    live.poll()
    assert len(live.snapshot.gpu) > 10
    assert all(0 <= value <= 100 for value in live.snapshot.gpu)
    drawn = sparks(live.snapshot)
    assert "Step time: " in drawn
    assert "GPU use: " in drawn


@pytest.fixture
def in_parquet(job, tmp_path):
    """The job, ended, as a data set of which a report has been made; where the live page finds it."""
    folder = tmp_path / "job"
    copy_files(job, folder, data_files(job))
    end(folder)
    return reported_in_parquet(folder, tmp_path / "columns")


def reported_in_parquet(folder, columns):
    compact(open_source(folder, cache=False), LocalStorage(columns), job="job")
    (found,) = find_shown(str(columns))
    build_report(open_source(found.where))
    return found.where


def test_a_job_in_parquet_is_shown_from_the_state_that_is_kept(job, in_parquet, monkeypatch):
    """No rows are read."""
    monkeypatch.setattr(
        ParquetStorage, "pieces", lambda _, items, **__: pytest.fail("rows are read") if items else iter(())
    )
    live, whole = LiveJob(in_parquet), LiveJob(str(job))
    live.poll()
    whole.poll()
    assert live.snapshot.state == "ended"
    assert live.snapshot.report.verdict.main.headline == whole.snapshot.report.verdict.main.headline
    assert live.snapshot.parts["heat"].html == whole.snapshot.parts["heat"].html
    assert live.snapshot.files == whole.snapshot.files


def test_a_saved_page_stays_until_all_is_read(in_parquet, monkeypatch):
    LiveJob(in_parquet).poll()
    live = LiveJob(in_parquet)
    earlier, shown = live.snapshot, []
    monkeypatch.setattr(live, "_publish", lambda **changes: shown.append(changes))
    live.poll()
    assert earlier.parts["heat"].html
    assert [changes["state"] for changes in shown] == ["ended"]


def test_rows_beyond_the_kept_state_are_counted(in_parquet, monkeypatch):
    reader = JobReader(in_parquet)
    reader.read()
    before = steps(reader.report())
    monkeypatch.setattr(reader._source, "refresh", lambda: 1)
    assert reader.read()
    assert steps(reader.report()) == before > 0


def test_a_job_in_parquet_without_an_end_is_shown_too(job, tmp_path):
    """After an hour of silence, a report takes a job for one that is over."""
    folder = tmp_path / "job"
    copy_files(job, folder, data_files(job))
    reader = JobReader(reported_in_parquet(folder, tmp_path / "columns"))
    assert reader.read()
    assert not reader.read()
    assert not reader.over


@pytest.mark.parametrize("report_s", [0.02, 0.2, 0.45, 0.6, 0.8])
def test_a_file_is_on_the_page_within_two_seconds_while_others_come_all_the_time(job, monkeypatch, report_s):
    now, reads, late = [0.0], [], []
    live = LiveJob(str(job), clock=lambda: now[0])
    live.poll()
    report = live.snapshot.report
    live._snapshot = replace(live.snapshot, state="running")

    def make(_):
        now[0] += report_s
        return report

    def published(state=""):
        read = reads[-1]
        original(state)
        late.append(now[0] - shown_to[-1])
        shown_to.append(read)

    original, shown_to = live._publish_report, [0.0]
    monkeypatch.setattr(JobReader, "read", lambda *_: reads.append(now[0]) or True)
    monkeypatch.setattr(JobReader, "report", make)
    monkeypatch.setattr(live, "_publish_report", published)
    monkeypatch.setattr("sm_profiler.serve.live.page_parts", lambda _: {})
    while now[0] < 60:
        live.poll()
        now[0] += live._pause_s()
    assert max(late) + LOOK_S <= 2.0 + 1e-9
    assert len(late) <= 60 / LOCAL_POLL_S  # reports are not made without a pause
    assert report_s > 0.5 or len(late) * report_s < 0.45 * 60


@pytest.mark.parametrize("report_s", [0.9, 2.0, 30.0])
def test_reports_that_cannot_be_in_time_take_their_share_of_the_time(report_s):
    assert report_s / (report_s + pause_after(report_s)) == pytest.approx(REPORT_SHARE)


def test_the_wait_for_the_reports_of_other_jobs_is_no_work_of_this_one(job, monkeypatch):
    now = [0.0]

    class Busy:
        def __enter__(self):
            now[0] += 30.0

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("sm_profiler.serve.live._report_lock", Busy())
    live = LiveJob(str(job), clock=lambda: now[0])
    live.poll()
    assert live._next_report == now[0] + pause_after(0.0)


def test_two_jobs_never_compute_their_reports_at_once(tmp_path, monkeypatch):
    jobs = [LiveJob(str(make_job(tmp_path / name, "--minutes", "1"))) for name in "abc"]
    at_once, most, original = [0], [0], page_parts

    def counted(report):
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        parts = original(report)
        at_once[0] -= 1
        return parts

    monkeypatch.setattr(live_module, "page_parts", counted)
    with live_module._report_lock:
        threads = [threading.Thread(target=job.poll) for job in jobs]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(60)
    assert all(job.snapshot.report for job in jobs)
    assert most == [1]
