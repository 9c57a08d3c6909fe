"""Events that are set by signal handlers, with signals at random moments."""

import signal
import subprocess
import sys
import threading
import time

from sm_profiler.threads import SignalEvent


def test_has_the_methods_of_an_event():
    event = SignalEvent()
    assert not event.is_set()
    began = time.monotonic()
    assert not event.wait(0.05)
    assert time.monotonic() - began >= 0.04
    event.set()
    event.set()
    assert event.is_set()
    assert event.wait()
    event.clear()
    assert not event.is_set()


def test_wakes_every_waiting_thread():
    event, woken = SignalEvent(), []
    threads = [threading.Thread(target=lambda: woken.append(event.wait(30))) for _ in range(4)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(10)
    assert woken == [True] * 4


def test_stays_set_however_often_it_is_set():
    event = SignalEvent()
    for _ in range(100_000):  # more than a pipe holds
        event.set()
    assert event.is_set()
    event.clear()
    assert not event.is_set()


# The main thread is nearly always inside a method of the event while signals arrive at random moments.
STORM = """
import os, random, signal, sys, threading, time
from sm_profiler.threads import SignalEvent

event, calls, end = SignalEvent(), [0], time.monotonic() + 2

def handle(*_):
    calls[0] += 1
    event.set()

signal.signal(signal.SIGUSR1, handle)

def storm():
    while time.monotonic() < end:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(random.random() / 5000)

thread = threading.Thread(target=storm)
thread.start()
while thread.is_alive():
    event.wait(0)
    event.clear()
    event.set()
    event.is_set()
    event.clear()
os.kill(os.getpid(), signal.SIGUSR1)
assert event.wait(5)
print(calls[0])
"""


def test_signals_at_random_moments_neither_deadlock_nor_get_lost():
    done = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=30, check=True)
    assert int(done.stdout) > 200


def test_sets_itself_on_signals():
    event = SignalEvent()
    before = signal.getsignal(signal.SIGUSR2)
    try:
        event.set_on(signal.SIGUSR2)
        signal.raise_signal(signal.SIGUSR2)
        assert event.wait(1)
    finally:
        signal.signal(signal.SIGUSR2, before)
