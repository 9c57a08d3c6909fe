"""Signals to `sm-profiler run` reach the script, whose exit code it returns."""

import os
import signal
import subprocess
import sys
import time

import pytest

LAUNCHER = """
import os, signal, sys
from sm_profiler.run_folder import run_command
for number in (signal.SIGINT, signal.SIGQUIT):  # which shells ignore in what they run in the background
    signal.signal(number, signal.SIG_DFL)
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


COUNTS = """
import os, signal, time
got = []
for number in ({numbers}):
    signal.signal(number, lambda number, _frame: got.append(number))
{more}
print("ready", flush=True)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    time.sleep(0.01)
print(*(number for number in got), flush=True)
"""


def test_a_signal_to_the_whole_group_reaches_the_script_once():
    """Slurm sends some so, and timeout first to the command alone and then to its group."""
    numbers = [int(signal.SIGUSR1), int(signal.SIGTERM)]
    process = launch(COUNTS.format(numbers=", ".join(map(str, numbers)), seconds=2, more=""))
    for again in range(2):
        os.killpg(process.pid, numbers[again])
        time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    output = process.communicate(timeout=60)[0].splitlines()
    assert output == [" ".join(map(str, [*numbers, numbers[1]])), "0 False"]


def test_a_script_in_another_group_gets_a_signal_to_the_first():
    number = int(signal.SIGUSR1)
    process = launch(COUNTS.format(numbers=f"{number},", seconds=1, more="os.setpgid(0, 0)"))
    os.killpg(process.pid, number)
    assert process.communicate(timeout=60)[0].splitlines()[0] == str(number)


def test_without_a_witness_signals_are_forwarded(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    process = launch(HANDLES.format(number=int(signal.SIGUSR1)))
    process.send_signal(signal.SIGUSR1)
    assert process.communicate(timeout=60)[0] == "7 False\n"
