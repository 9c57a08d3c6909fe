"""`sm-profiler run`: run a training script with the hook on while the machine is sampled."""

from __future__ import annotations

import argparse
import contextlib
import select
import shutil
import subprocess
import sys
import sysconfig
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.printable import say
from sm_profiler.processes import start_module, wait_for
from sm_profiler.run_folder import find_configuration
from sm_profiler.run_folder import run as run_profiled

NEEDED_TO_WATCH = ("numpy", "jinja2")
NEEDED_TO_OPEN = (*NEEDED_TO_WATCH, "starlette", "uvicorn")
FIRST_PAGE_S = 30.0  # the script does not wait longer for the page's address
LAST_LINES_S, LAST_PAGE_S = 30.0, 40.0
WHOLE_SCREEN = "\x1b7\x1b[r\x1b8"
EXAMPLES = """\
examples:
  sm-profiler run train.py --epochs 3
  sm-profiler run -m my_package.train
  sm-profiler run -- torchrun --nproc-per-node 2 train.py
"""


def add_run(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.usage = (
        "sm-profiler run [--out DIR | --config FILE] [--no-monitor] [--watch] [--open] "
        "[-m MODULE | SCRIPT | -- COMMAND] [ARGS]"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--out", type=Path, metavar="DIR", help="the profile's folder (default: ./sm-profiler/<script>-<time>)"
    )
    where.add_argument(
        "--config", type=Path, metavar="FILE", help="a profilerconfig.json; the profile goes to its LocalPath"
    )
    parser.add_argument("--no-monitor", action="store_true", help="do not sample the machine")
    parser.add_argument("--watch", action="store_true", help="show verdict and step time below the script's output")
    parser.add_argument(
        "--open", action="store_true", help="serve the live page meanwhile, and open it in a browser, if there is one"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="…", help="the script and its arguments, or -- and any command"
    )


def run_run(options: Namespace) -> int:
    view = LiveView(options.watch, options.open)
    view.check()
    command, name = find_command(options)
    config = find_configuration(options.config, name, options.out)
    return run_profiled(command, config, name, sample=not options.no_monitor, started=view.start, over=view.finish)


def find_command(options: Namespace) -> tuple[list[str], str]:
    words: list[str] = options.words
    if words[:1] == ["--"] and not options.module:
        if len(words) == 1:
            raise ProfilerError("run: no command after --")
        if shutil.which(words[1]) is None:
            hint = f"; a script needs no --: sm-profiler run {words[1]}" if Path(words[1]).is_file() else ""
            raise ProfilerError(f"{words[1]}: no such command{hint}")
        return words[1:], Path(words[1]).name
    if not words:
        raise ProfilerError("run: no script given, as in sm-profiler run train.py")
    start = [sys.executable] if entry_installed() else [sys.executable, "-m", "sm_profiler.hook.launch"]
    if options.module:
        check_module(words[0])
        return [*start, "-m", *words], words[0].rpartition(".")[2]
    script = Path(words[0])
    if not script.exists():
        hint = f"; before a command goes --: sm-profiler run -- {' '.join(words[:2])}" if shutil.which(words[0]) else ""
        raise ProfilerError(f"{words[0]}: no such file{hint}")
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise ProfilerError(f"{words[0]}: a folder without __main__.py")
    return [*start, *words], script.resolve().stem


def check_module(name: str) -> None:
    """Check that `python -m name` will find a module, without importing its packages."""
    sys.path.insert(0, str(Path.cwd()))  # as python -m does
    try:
        path: Sequence[str] | None = None
        full = ""
        for part in name.split("."):
            full = f"{full}.{part}" if full else part
            spec = next((found for finder in sys.meta_path if (found := finder.find_spec(full, path))), None)
            if spec is None:
                raise ProfilerError(f"no module {full}")
            path = spec.submodule_search_locations
        main = f"{name}.__main__"
        if path is not None and not any(finder.find_spec(main, path) for finder in sys.meta_path):
            raise ProfilerError(f"{name} is a package without __main__")
    except (ImportError, AttributeError, ValueError) as error:  # a finder rejects a strange name
        raise ProfilerError(f"no module {name}: {error}") from error
    finally:
        del sys.path[0]


def entry_installed() -> bool:
    """Return whether the `.pth` file is installed that loads the hook into every Python of this environment."""
    return any(Path(sysconfig.get_path(kind), "sm_profiler_auto.pth").exists() for kind in ("purelib", "platlib"))


@attrs.define(eq=False)
class LiveView:
    """Processes that show a run. They only read, and their failure changes nothing.

    Attributes:
        watch: show live lines.
        open: serve the live page.
    """

    watch: bool = False
    open: bool = False
    _lines: subprocess.Popen[bytes] | None = None
    _page: subprocess.Popen[bytes] | None = None

    def check(self) -> None:
        """Check that the needed packages are installed, before the script starts."""
        wanted = [*(NEEDED_TO_WATCH if self.watch else ()), *(NEEDED_TO_OPEN if self.open else ())]
        for name in wanted:
            if find_spec(name) is None:
                raise ModuleNotFoundError(name, name=name)

    def start(self, root: Path) -> None:
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
        say(f"live page: {address or 'it did not start'}")

    def finish(self, recorded: bool) -> None:
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
            with contextlib.suppress(OSError):
                print(WHOLE_SCREEN, end="", file=sys.stderr, flush=True)
