"""Threads that compute for the training thread: which are followed, and how long a lack of cores delays them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler.hook import scheduling
from sm_profiler.hook.scheduling import Helpers

MAIN = os.getpid()
MS = 1_000_000


class Machine:
    """A process whose threads run and wait as a test wants."""

    def __init__(self, folder, python=()):
        self.folder, self.times, self.now = folder, {}, 0
        self.helpers = Helpers(folder, lambda: set(python))
        self.add(MAIN)

    def add(self, thread):
        self.times[thread] = [0, 0]
        (self.folder / str(thread)).mkdir()
        self.write(thread)

    def write(self, thread):
        ran, waited = self.times[thread]
        with (self.folder / str(thread) / "schedstat").open("a+") as file:
            file.truncate(0)
            file.write(f"{ran} {waited} 7\n")

    def passes(self, milliseconds, threads=()):
        """Let time pass; `threads` has (thread, ms on a core, ms of waiting for one)."""
        self.now += milliseconds * MS
        for thread, ran, waited in threads:
            self.times[thread][0] += ran * MS
            self.times[thread][1] += waited * MS
            self.write(thread)
        return self.helpers.delay(self.now) / MS

    def settle(self):
        """Let the busiest threads be chosen."""
        self.passes(scheduling.AGAIN_NS // MS, [(one, 10, 0) for one in self.times if one != MAIN])


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def open_files():
    return {one.name for one in Path("/proc/self/fd").iterdir()}


def test_a_thread_that_the_training_thread_waits_for_delays_it(machine):
    machine.add(11)
    machine.settle()
    assert machine.passes(100, [(MAIN, 10, 0), (11, 40, 50)]) == 50
    assert machine.passes(100, [(MAIN, 90, 0), (11, 0, 0)]) == 0
    machine.helpers.close()


def test_threads_that_wait_at_the_same_time_delay_it_once(machine):
    for thread in range(11, 15):
        machine.add(thread)
    machine.settle()
    found = machine.passes(100, [(thread, 60, 40) for thread in range(11, 15)])
    assert found == pytest.approx(40)
    machine.helpers.close()


@pytest.mark.parametrize("own", [(100, 0), (60, 40), (200, 0)])
def test_a_training_thread_that_runs_or_waits_itself_waits_for_no_other(machine, own):
    machine.add(11)
    machine.settle()
    assert machine.passes(100, [(MAIN, *own), (11, 40, 50)]) == 0
    machine.helpers.close()


def test_pythons_threads_do_not_count(tmp_path):
    machine = Machine(tmp_path, python=(11,))
    machine.add(11)
    machine.settle()
    assert machine.passes(100, [(11, 40, 50)]) == 0
    machine.helpers.close()


def test_the_busiest_threads_are_followed_and_their_files_closed(machine, monkeypatch):
    monkeypatch.setattr(scheduling, "MAX_FOLLOWED", 2)
    before = open_files()
    for thread in range(11, 20):
        machine.add(thread)
    machine.passes(scheduling.AGAIN_NS // MS, [(thread, thread, 0) for thread in range(11, 20)])
    assert len(open_files() - before) == 3
    assert machine.passes(100, [(18, 10, 10), (11, 10, 30)]) == 10
    machine.passes(scheduling.AGAIN_NS // MS, [(11, 900, 0), (12, 900, 0)])
    assert machine.passes(100, [(18, 10, 10), (11, 10, 30)]) == 30
    machine.helpers.forked()
    assert open_files() <= before


def test_threads_that_end_and_kernels_that_count_nothing_are_no_error(machine, tmp_path):
    machine.add(11)
    machine.settle()
    (tmp_path / "11" / "schedstat").write_text("")
    assert machine.passes(100, [(MAIN, 10, 0)]) == 0
    assert Helpers(tmp_path / "none").delay(10**12) == 0


def test_this_process_is_read():
    real = Helpers()
    assert real.delay(10**9) >= 0
    assert real.delay(2 * 10**9) >= 0
    real.close()


def test_workers_are_counted_while_they_run_and_once_they_have_ended(tmp_path):
    before = scheduling.children_cpu_s()
    work = "import sys, time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        worker.stdout.readline()
        running = scheduling.children_cpu_s() - before
    ended = scheduling.children_cpu_s() - before
    assert 0.45 <= running <= ended < 5
    assert scheduling.children_cpu_s(tmp_path) <= before + ended  # without the kernel's files
