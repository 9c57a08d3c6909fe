"""Scripts whose own rules the hook must keep: each prints the same, and ends the same, without it."""

import json
import subprocess
import sys

import pytest

from tests.support.hook import environment

TRAINING = """
import sys, time, torch
from torch import nn

def train(steps=12, each=lambda step: None, pause=0.0, model=None):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause)
        each(step)
    return model

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
"""

JOIN = """
import threading
train()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
say(threading.active_count())
"""
LOGGING_THREAD = """
import logging, threading
from sm_profiler import threads
train()
threads.start(lambda: (logging.warning("from a thread"), threading.current_thread()), name="sm-profiler test").join()
say(threading.active_count(), len(threads.running()) >= 2)
"""
SIGNALS = """
import os, signal, subprocess
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
def warn(step):
    if step == 5:
        subprocess.run(["kill", "-USR1", str(os.getpid())])
        say(signal.sigtimedwait([signal.SIGUSR1], 5).si_signo == signal.SIGUSR1)
train(each=warn)
"""
# case → script and what it prints
CASES = {
    "threads that the script joins": (JOIN, ["1"]),
    "log lines of our threads": (LOGGING_THREAD, ["1 True"]),
    "a blocked signal": (SIGNALS, ["True"]),
}


@pytest.mark.parametrize("case", CASES)
def test_scripts_do_what_they_do_without_the_hook(tmp_path, case):
    text, expected = CASES[case]
    done = run(tmp_path, text)
    assert (done.stdout.splitlines(), done.returncode) == (expected, 0), done.stderr
    assert "switched off" not in done.stderr


def run(folder, text, *words, **parameters):
    script = folder / "train.py"
    script.write_text(TRAINING + text)
    profile = {"ProfilingParameters": {"LocalPath": str(folder / "profile"), **parameters}}
    return subprocess.run(
        [sys.executable, "-m", "sm_profiler.hook.launch", script, *words], cwd=folder, capture_output=True, text=True,
        env=environment(SM_PROFILER_CONFIG=json.dumps(profile), OMP_NUM_THREADS="1"), check=False, timeout=60,
    )  # fmt: skip
