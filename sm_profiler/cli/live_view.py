"""Live lines below the output of `sm-profiler run`, and the live page, while the script runs."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import attrs

from sm_profiler.processes import start_module, wait_for

NEEDED_TO_WATCH = ("numpy", "jinja2")
NEEDED_TO_OPEN = (*NEEDED_TO_WATCH, "starlette", "uvicorn")
FIRST_PAGE_S = 30.0  # the script does not wait longer for the page's address
LAST_LINES_S, LAST_PAGE_S = 30.0, 40.0
WHOLE_SCREEN = "\x1b7\x1b[r\x1b8"


@attrs.define(eq=False)
class LiveView:
    """Processes beside a run. They only read, and their failure changes nothing.

    Attributes:
        watch: show live lines.
        open: serve the live page.
    """

    watch: bool = False
    open: bool = False
    _lines: subprocess.Popen[bytes] | None = None
    _page: subprocess.Popen[bytes] | None = None

    def check(self) -> None:
        """Check that the needed packages are installed, before the script starts.

        Raises:
            ModuleNotFoundError: names the first one that is missing.
        """
        wanted = [*(NEEDED_TO_WATCH if self.watch else ()), *(NEEDED_TO_OPEN if self.open else ())]
        for name in wanted:
            if find_spec(name) is None:
                raise ModuleNotFoundError(name, name=name)

    def start(self, root: Path) -> None:
        """Show the run in a folder."""
        where = str(root.absolute())
        if self.open:
            self._start_page(where)
        if self.watch:
            with contextlib.suppress(OSError):
                self._lines = start_module("sm_profiler.serve.terminal", [where])

    def _start_page(self, where: str) -> None:
        pipe = subprocess.PIPE
        try:
            self._page = start_module("sm_profiler.serve.run_page", [where], stdin=pipe, stdout=pipe, new_session=True)
        except OSError:
            return
        if self._page.stdout is None:
            return
        with self._page.stdout as answers:
            has_answer = select.select([answers], [], [], FIRST_PAGE_S)[0]
            address = answers.readline().decode("utf-8", "replace").strip() if has_answer else ""
        print(f"sm-profiler: live page: {address or 'it did not start'}", file=sys.stderr, flush=True)

    def finish(self, *, recorded: bool) -> None:
        """End both; if anything was recorded, let them show the end of the run first."""
        if self._page is not None and self._page.stdin is not None:
            with contextlib.suppress(OSError):
                self._page.stdin.close()
        for process, seconds in ((self._lines, LAST_LINES_S), (self._page, LAST_PAGE_S)):
            if process is None:
                continue
            with contextlib.suppress(KeyboardInterrupt):  # that is all Ctrl-C ends here
                wait_for(process, seconds if recorded else 0.0)
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(KeyboardInterrupt):
                    wait_for(process, 5.0)
            if process.poll() is None:
                process.kill()
                process.wait()
        if self._lines is not None and self._lines.returncode and sys.stderr.isatty():  # it left no terminal as it was
            print(WHOLE_SCREEN, end="", file=sys.stderr, flush=True)
