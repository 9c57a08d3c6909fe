"""Reports of several jobs are computed one at a time, the longest wait first."""

import threading

import pytest
from serve_helpers import make_job, until

from sm_profiler.serve import live, look
from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.turns import Turns


def test_turns_are_taken_in_the_order_of_coming():
    turns, done = Turns(), []

    def take(name):
        for _ in range(3):  # each one comes again at once, behind the others
            with turns:
                until(lambda: turns.waiting == 3 or len(done) >= 9)
                done.append(name)

    threads = [threading.Thread(target=take, args=(name,)) for name in "abcd"]
    with turns:
        for number, one in enumerate(threads, 1):
            one.start()
            until(lambda number=number: turns.waiting == number)
    for one in threads:
        one.join(60)
    assert "".join(done) == "abcd" * 3
    assert turns.waiting == 0


def test_an_error_hands_the_turn_over():
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns:
        raise ZeroDivisionError
    with turns:
        assert turns.waiting == 0


def test_two_jobs_never_compute_their_reports_at_once(tmp_path, monkeypatch):
    jobs = [LiveJob(str(make_job(tmp_path / name, "--minutes", "1"))) for name in "abc"]
    at_once, most, original = [0], [0], look.page_parts

    def counted(report):
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        parts = original(report)
        at_once[0] -= 1
        return parts

    monkeypatch.setattr(look, "page_parts", counted)
    with live._turns:
        threads = [threading.Thread(target=one.poll) for one in jobs]
        for one in threads:
            one.start()
        until(lambda: live._turns.waiting == len(jobs))
    for one in threads:
        one.join(60)
    assert all(one.snapshot.report for one in jobs)
    assert most == [1]
