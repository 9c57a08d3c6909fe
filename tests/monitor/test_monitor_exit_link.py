"""The exit code of a process that waits for the monitor."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm_profiler.metrics.ends import EndFacts, end_of, rank_ends
from sm_profiler.monitor.exit_link import ExitDesk, ExitLink
from tests.support.monitor import kinds, uploaded

TRAIN = """
import os, sys
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print(os.getpid(), flush=True)
"""


@pytest.fixture
def train(job, tmp_path):
    """Start a single process that trains, and then executes a statement."""
    script = tmp_path / "train.py"

    def started(statement):
        script.write_text(TRAIN + statement)
        command = [sys.executable, "-m", "sm_profiler.hook.launch", str(script)]
        process = subprocess.Popen(
            command, env=job.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        job.processes.append(process)
        return process

    return started


def end_on_s3(s3):
    names = uploaded(s3)
    prefix = "out/job-1/profiler-output/"
    files = [s3.get_object(Bucket="profiles", Key=prefix + name)["Body"].read() for name in names if "pevents" in name]
    records = [one["args"] for text in files for one in json.loads(text) if one["name"] == "sm_profiler/process"]
    ranks = rank_ends(records, {})
    return end_of(EndFacts(finished="marker" in kinds(names)), ranks)


@pytest.mark.first(1)
@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("statement", "code", "state"),
    [
        ("sys.exit(7)", 7, "crashed"), ("pass", 0, "completed"), ("sys.exit('message')", 1, "crashed"),
        ("raise ValueError('x')", 1, "crashed"), ("sys.exit(0)", 0, "completed"),
        ("import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); sys.exit(7)", 7, "crashed"),
    ],
)  # fmt: skip
def test_the_exit_code_of_a_single_process_is_uploaded_before_it_is_gone(train, s3, statement, code, state):
    process = train(statement)
    _, errors = process.communicate(timeout=120)
    assert "exit_link" not in errors
    end = end_on_s3(s3)  # at once: a container ends with its process
    assert (process.returncode, end.state, end.exit_code or 0) == (code, state, code)


@pytest.mark.long
def test_a_monitor_that_is_stopped_holds_up_no_exit(train, job):
    process = train("import time; time.sleep(2); sys.exit(7)")
    process.stdout.readline()
    job.until(job.monitors)
    for pid in job.monitors():
        os.kill(pid, signal.SIGSTOP)
    assert process.wait(120) == 7


LEAVE = """
import os, sys
from pathlib import Path
from sm_profiler.hook.process_end import record_exit_code
from sm_profiler.monitor.exit_link import ExitLink
root = Path(sys.argv[1])
record_exit_code(root, "0-algo-1", {"rank": 0, "end_us": 5})
link = ExitLink.open(root, "algo-1")
while not link.may_exit():
    pass
link.wait_in_exit()
"""


@pytest.mark.first(1)
@pytest.mark.parametrize("last", ["sys.exit(3)", "os._exit(3)", "os.abort()"])
def test_the_process_waits_until_it_is_released(tmp_path, last):
    root = tmp_path / ("long" * 40)
    (root / ".sagemaker-ignore").mkdir(parents=True)
    desk = ExitDesk(root, "algo-1")
    desk.open()
    process = subprocess.Popen([sys.executable, "-c", LEAVE + last, str(root)])
    end = time.monotonic() + 60
    while not list(root.rglob("0-algo-1_*")):
        assert time.monotonic() < end
    while not desk._waiting:
        time.sleep(0.01)
        desk._accept()
    assert desk.let_go() == ({process.pid} if "sys" in last else set())
    if "sys" in last:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
    desk.close()
    assert process.wait(10) == {"sys.exit(3)": 3, "os._exit(3)": 3}.get(last, -signal.SIGABRT)
    assert not list(root.rglob("*.sock"))


def test_without_a_monitor_or_a_record_nothing_waits(tmp_path):
    assert ExitLink.open(tmp_path, "algo-1") is None
    folder = tmp_path / ".sagemaker-ignore" / "exits"
    folder.mkdir(parents=True)
    (folder / f"0-algo-1_{os.getpid()}_5").write_text("{}\n")
    assert ExitLink.open(tmp_path, "algo-1") is None
    desk = ExitDesk(Path("/proc"), "algo-1")
    desk.open()
    assert desk.let_go() == set()
    desk.close()
