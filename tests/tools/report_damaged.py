"""Report damaged copies of a profile in one process with limits: report_damaged.py BASE SCRATCH FIRST_SEED COUNT.

Prints one JSON object per job: seed, command, exit code, seconds, output, and the records before and after.
"""

import contextlib
import faulthandler
import io
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "SM_PROFILER_CACHE": "off"}

from damage import damage

from sm_profiler.cli import main
from sm_profiler.errors import ProfilerError
from sm_profiler.source import open_source

MEMORY = 4 << 30
SECONDS = 60  # of wall time a job, on a busy machine
COMMANDS = (
    ["report"], ["report"], ["report", "--compat", "service"], ["report", "--strict"], ["merge-timeline"],
)  # fmt: skip


class OutOfTimeError(BaseException):
    """A job took longer than SECONDS."""


def out_of_time(*_):
    raise OutOfTimeError


def records(folder):
    """Return the number of records read from a profile, and whether the source reports any loss."""
    source = open_source(folder, cache=False, progress=False)
    count = len(source.system()) + len(source.events())
    return count, any(file.lost or file.status != "read" for file in source.quality())


def run(base, scratch, seed):
    """Report one damaged copy and return what happened."""
    job, out = scratch / "job", scratch / "out"
    for folder in (job, out):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, job)
    before, _ = records(job)
    visible = damage(job, seed)
    command = COMMANDS[seed % len(COMMANDS)]
    target = out / "trace.json" if command == ["merge-timeline"] else out
    result = {"seed": seed, "command": command[0], "visible": visible, "before": before, "trouble": ""}
    printed, errors, begun = io.StringIO(), io.StringIO(), time.monotonic()
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            result["code"] = main([*command, str(job), "--out", str(target)])
        result["seconds"] = time.monotonic() - begun
        with contextlib.suppress(ProfilerError):
            result["after"], result["loss_reported"] = records(job)
    except OutOfTimeError:
        result["trouble"] = "took too long\n" + traceback.format_exc()
    except BaseException:
        result["trouble"] = traceback.format_exc()
    finally:
        signal.alarm(0)
    result |= {"out": printed.getvalue(), "err": errors.getvalue()}
    if (out / "report.json").exists():
        result["report"] = json.loads((out / "report.json").read_text("utf-8"))
    return result


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    signal.signal(signal.SIGALRM, out_of_time)
    base, scratch, first, count = sys.argv[1:]
    for seed in range(int(first), int(first) + int(count)):
        print(json.dumps(run(Path(base), Path(scratch), seed)), flush=True)  # noqa: T201 - the result
