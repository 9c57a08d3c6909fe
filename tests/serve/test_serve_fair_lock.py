"""Reports of several jobs are computed one at a time, the longest wait first."""

import threading

import pytest

from sm_profiler.serve import live, snapshot
from sm_profiler.serve.live import FairLock, LiveJob
from tests.support.serving import make_job, until


def test_the_thread_that_has_waited_longest_is_next():
    lock, done = FairLock(), []

    def take(name):
        for _ in range(3):  # each comes again at once, behind the others
            with lock:
                until(lambda: lock.waiting == 3 or len(done) >= 9)
                done.append(name)

    threads = [threading.Thread(target=take, args=(name,)) for name in "abcd"]
    with lock:
        for number, thread in enumerate(threads, 1):
            thread.start()
            until(lambda number=number: lock.waiting == number)
    for thread in threads:
        thread.join(60)
    assert "".join(done) == "abcd" * 3
    assert lock.waiting == 0


def test_an_error_releases_the_lock():
    lock = FairLock()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    with lock:
        assert lock.waiting == 0


def test_two_jobs_never_compute_their_reports_at_once(tmp_path, monkeypatch):
    jobs = [LiveJob(str(make_job(tmp_path / name, "--minutes", "1"))) for name in "abc"]
    at_once, most, original = [0], [0], snapshot.page_parts

    def counted(report):
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        parts = original(report)
        at_once[0] -= 1
        return parts

    monkeypatch.setattr(snapshot, "page_parts", counted)
    with live._report_lock:
        threads = [threading.Thread(target=job.poll) for job in jobs]
        for thread in threads:
            thread.start()
        until(lambda: live._report_lock.waiting == len(jobs))
    for thread in threads:
        thread.join(60)
    assert all(job.snapshot.report for job in jobs)
    assert most == [1]
