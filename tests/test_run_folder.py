"""Signals to `sm-profiler run` reach the script, whose exit code it returns."""

import os
import signal
import subprocess
import sys

import pytest

LAUNCHER = """
import os, sys
from sm_profiler.run_folder import run_command
ended = run_command([sys.executable, "-c", sys.argv[1]], dict(os.environ))
print(ended.code, ended.stopped)
"""
HANDLES = """
import signal, sys, time
signal.signal({number}, lambda number, _frame: sys.exit(7))
print("ready", flush=True)
time.sleep(60)
"""
DEFAULT = "import time; print('ready', flush=True); time.sleep(60)"


def launch(script):
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("number", "stopped"),
    [(signal.SIGHUP, True), (signal.SIGUSR1, False), (signal.SIGUSR2, False), (signal.SIGQUIT, True), (signal.SIGWINCH, False),
     (signal.SIGALRM, False), (signal.SIGRTMIN, False), (signal.SIGTERM, True)],
)  # fmt: skip
def test_the_script_gets_the_signal(number, stopped):
    process = launch(HANDLES.format(number=int(number)))
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == f"7 {stopped}\n"
    assert process.returncode == 0


def test_a_signal_that_ends_the_script_gives_its_exit_code():
    process = launch(DEFAULT)
    process.send_signal(signal.SIGUSR1)
    assert process.communicate(timeout=60)[0] == f"{128 + signal.SIGUSR1} False\n"


def test_a_stop_from_the_keyboard_stops_the_script_too():
    handles = "import signal; signal.signal(signal.SIGTSTP, lambda *_: print('stops', flush=True))\n"
    process = launch(
        handles + DEFAULT.replace("60", "1")
    )  # in a session without a shell, where nothing stops by default
    process.send_signal(signal.SIGTSTP)
    assert process.stdout.readline() == "stops\n"
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=60)[0] == "0 False\n"


def test_an_ignored_signal_stays_ignored():
    nohup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    process = subprocess.Popen([*nohup, sys.executable, "-c", LAUNCHER, DEFAULT], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    os.kill(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == f"{128 + signal.SIGTERM} True\n"
