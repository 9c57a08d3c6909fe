"""Scripts that remove modules which the hook's threads then import anew."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading, time
from sm_profiler import threads

again = threading.Event()

def work():
    del sys.modules["threading"]
    import threading
    again.set()
    while True:
        time.sleep(0.01)
        threads.hide()

threads.start(work, name="sm-profiler")
again.wait()
print("done")
"""


def test_a_process_ends_although_a_thread_of_the_hook_has_imported_threading_anew() -> None:
    """Until Python 3.12, that thread became the main thread of the new module, and the process waited for its end."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
