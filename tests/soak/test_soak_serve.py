"""Twenty viewers of the live page, coming and going, one job that grows: memory, descriptors and threads stay flat.

SM_PROFILER_SOAK_SERVE_S=86400 makes a day of it.
"""

import http.client
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from usage import MAX_GROWTH, Usage, watch

from sm_profiler.serve.jobs import find_shown
from tests.support.jobs import make_job

pytestmark = [pytest.mark.long, pytest.mark.timeout(100_000)]

JOB_GROWTH = 6 * 2**20  # the job that grows: its steps and samples, however long the soak
SECONDS = float(os.environ.get("SM_PROFILER_SOAK_SERVE_S", "90"))
JOBS, VIEWERS = 4, 20
FILES, THREADS = 8, 64  # of the server once the viewers have left, beyond those before they came; in all


class Viewer(threading.Thread):
    """One browser: reads a stream for a while, or asks now and then, looks at other pages, and leaves without a word."""

    def __init__(self, number, address, jobs, over):
        super().__init__(daemon=True)
        self.place = urlsplit(address)
        self.chance = random.Random(number)  # to vary what it does
        self.jobs, self.over = jobs, over
        self.answers, self.wrong = 0, []

    def run(self):
        while not self.over.is_set():
            job, other = self.chance.sample(self.jobs, 2)
            paths = ("", "list", f"jobs/{job}", f"jobs/{job}/report.json", f"compare?a={job}&b={other}", "no-such-page")
            with suppress(OSError, http.client.HTTPException):
                self.look(self.chance.choice(paths))
                self.look(f"jobs/{job}/updates?since=")
                self.look(f"jobs/{job}/events?since=", seconds=self.chance.uniform(0.2, 3.0))
            self.over.wait(self.chance.uniform(0.05, 0.5))

    def look(self, path, seconds=None):
        connection = http.client.HTTPConnection(self.place.hostname, self.place.port, timeout=60)
        try:
            connection.request("GET", f"/{path}")
            answer = connection.getresponse()
            missing = path == "no-such-page" or path.endswith("report.json")  # nothing has been read yet
            if answer.status not in {200, 202} | ({404} if missing else set()):
                self.wrong.append((path, answer.status))
            if seconds is None:
                answer.read()
            else:
                until = time.monotonic() + seconds
                while time.monotonic() < until and answer.read1(65536):
                    pass
            self.answers += 1
        finally:
            connection.close()


class Writer(threading.Thread):
    """A training job: links the files of a made job into the folder that is served, minute by minute."""

    def __init__(self, made, to, over):
        super().__init__(daemon=True)
        self.made, self.to, self.over = made, to, over
        self.files = sorted(made.rglob("*.json"), key=lambda path: path.name[:10])
        self.written = 0

    def run(self):
        pause_s = SECONDS / (len(self.files) + 1)
        for path in self.files:
            target = self.to / path.relative_to(self.made)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
            self.written += 1
            if self.over.wait(pause_s):
                return


def make(folder, minutes):
    start_s = int(time.time() - 60 * minutes) - 20
    make_job(folder, "--no-end-marker", "--minutes", minutes, "--start-epoch", start_s)


def test_viewers_come_and_go(tmp_path):
    jobs_folder = tmp_path / "jobs"
    for number in range(JOBS):
        make(jobs_folder / f"job-{number}", 3)
    make(tmp_path / "made", min(max(SECONDS / 15, 4), 60))
    environment = {**os.environ, "SM_PROFILER_CACHE": "off"}
    command = [sys.executable, "-m", "sm_profiler", "serve", str(jobs_folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    over = threading.Event()
    viewers = []
    writer = Writer(tmp_path / "made", jobs_folder / "growing", over)
    writer.start()
    try:
        address = server.stdout.readline().strip()
        jobs = [found.id for found in find_shown(str(jobs_folder))]
        viewers = [Viewer(number, address, jobs, over) for number in range(VIEWERS)]
        for viewer in viewers:
            viewer.start()
        usage, until = Usage(server.pid), time.monotonic() + SECONDS
        files = usage.process.num_fds()
        watch([usage], lambda: time.monotonic() < until and server.poll() is None, every_s=max(SECONDS / 1000, 0.5))
        assert server.poll() is None
        over.set()
        for viewer in viewers:
            viewer.join(120)
        until = time.monotonic() + 300
        while usage.process.num_fds() > files + FILES and time.monotonic() < until:
            time.sleep(0.5)
        assert usage.process.num_fds() <= files + FILES
        assert usage.process.num_threads() <= THREADS
    finally:
        over.set()
        server.send_signal(signal.SIGINT)
        server.wait(60)
        server.stdout.close()
    assert all(viewer.answers for viewer in viewers)
    assert not [one for viewer in viewers for one in viewer.wrong]
    assert writer.written > len(writer.files) // 2
    growth, error = usage.growth(1)
    handles, threads = (usage.growth(column)[0] for column in (2, 3))
    answers = sum(viewer.answers for viewer in viewers)
    sys.stdout.write(
        f"\n{answers:,} answers, {writer.written} new files, {growth / 2**20:.1f} ± {error / 2**20:.1f} MB more\n"
    )
    most = max(row[1] for row in usage.samples)
    sys.stdout.write(f"{handles:+.1f} descriptors, {threads:+.1f} threads; at most {most / 2**20:.0f} MB\n")
    limit = MAX_GROWTH + JOB_GROWTH
    assert growth < max(3 * error, limit), f"{growth / 2**20:.1f} MB more"
