"""Jobs that are written while a test watches them."""

import shutil
import time

from sm_profiler.serve.live import LiveJob
from tests.support import jobs

DEADLINE_S = 60


def make_job(folder, *options):
    """Write a synthetic job without end markers, and return its folder."""
    return jobs.make_job(folder, "--no-end-marker", *options)


def data_files(folder):
    """Return the data files of a job in the order of their minutes."""
    found = [path for path in folder.rglob("*.json") if path.is_file()]
    return sorted(found, key=lambda path: (int(path.name.partition("_")[0].partition(".")[0][:10]), path.name))


def copy_files(job, to, files):
    """Copy some files of a job."""
    for path in files:
        target = to / path.relative_to(job)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def end(folder):
    """Write the end markers."""
    for kind in ("system", "framework"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / "training_job_end.ts").touch()


def until(condition, seconds=DEADLINE_S):
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not come true in time")


class Polled(LiveJob):
    """A job that is read when it is watched, instead of by a thread."""

    def watch(self):
        if self.snapshot.state != "ended":
            self.poll()
        return self.snapshot
