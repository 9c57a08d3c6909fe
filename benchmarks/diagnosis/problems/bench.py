"""Common parts of the planted scripts: their options, the size of the planted problem, and a diary of their own.

Nothing here takes time inside a training loop, so no line of this file is ever a cause.
"""

from __future__ import annotations

import ast
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path

LASTS, MOST = 3.0, 8  # seconds of healthy steps at least; times the steps at most
ENOUGH, RARE, FEW = 8, 6, 3  # occurrences; times the usual; gaps that are left out
TOGETHER = 10  # steps on a GPU timed together, so that the host still runs ahead
TORCH = sys.modules.get("torch")  # imported by the script, before this module
if TORCH:
    TORCH.set_num_threads(1)  # the machines differ in cores; a step should not


class Run:
    """Options of a script: `--name value` for each default, `--repaired`, `--usual SECONDS`, `--diary FILE`.

    `usual` is the length of a healthy step on this machine. The benchmark measures it with the repaired twin. A script
    that is started by hand measures it itself, in the same way.
    """

    def __init__(self, **defaults):
        self._options = {"lasts": LASTS, **defaults}
        self._seconds, self._counts = defaultdict(float), defaultdict(int)
        self._gaps, self._ended, self._began, self._stepped = defaultdict(list), {}, 0.0, []
        self._started, self._loop = time.perf_counter(), 0.0
        self.repaired, self._usual, self._diary = False, 0.0, ""
        self._count, self._together = 0, 1
        self.samples = 0  # in all steps, if the repaired twin has other batches
        words = iter(sys.argv[1:])
        for word in words:
            name = word.removeprefix("--")
            if name == "repaired":
                self.repaired = True
            elif name == "usual":
                self._usual = float(next(words))
            elif name == "diary":
                self._diary = next(words)
            else:
                self._options[name] = type(defaults[name])(ast.literal_eval(next(words)))
        if self.repaired and TORCH:
            optimizers = import_module("torch.optim.optimizer")
            optimizers.register_optimizer_step_post_hook(lambda *_: self.stepped())
        if not self.repaired and not self._usual:
            self._usual = self._measure()
        if self._usual:  # on a fast machine more steps, so that they outweigh the first ones
            self._options["steps"] = max(self.steps, min(round(self.lasts / self._usual), MOST * self.steps))

    def __getattr__(self, name):
        try:
            return self._options[name]
        except KeyError:
            raise AttributeError(name) from None

    def _measure(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            diary = Path(folder, "diary.json")
            subprocess.run([sys.executable, *sys.argv, "--repaired", "--diary", str(diary)], check=True)
            return json.loads(diary.read_text())["step"]

    def stepped(self):
        """Note the end of a step, in a script without an optimizer of torch."""
        if self.repaired:
            self._count += 1
            if self._count % self._together == 0:
                if self._together > 1:
                    TORCH.cuda.synchronize()
                self._stepped.append(time.perf_counter())

    def usual(self) -> float:
        """Return the seconds of a healthy step."""
        return self._usual

    def pause(self, share: float | None = None, *, every: float = 1) -> float:
        """Return the seconds that take this share of the loop if they are spent once in so many steps; 0 if repaired."""
        share = self.share if share is None else share
        return 0.0 if self.repaired else self._usual * every * share / (1 - share)

    def rounds(self, work, share: float | None = None, *, every: float = 1) -> int:
        """Return how often to call a function for that share; 0 if repaired, at least 1 otherwise."""
        if self.repaired:
            return 0
        work()
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < 0.25:
            work()
            count += 1
        return max(round(self.pause(share, every=every) * count / (time.perf_counter() - started)), 1)

    @contextmanager
    def spends(self, what):
        """Add the seconds of a block to the diary."""
        start = time.perf_counter()
        if before := self._ended.get(what, self._began):
            self._gaps[what].append(start - before)
        yield
        self._ended[what] = time.perf_counter()
        self._seconds[what] += self._ended[what] - start
        self._counts[what] += 1

    @contextmanager
    def training(self):
        """Time the training loop."""
        if TORCH and TORCH.cuda.is_initialized():
            self._together = TOGETHER
            TORCH.cuda.synchronize()
        self._began = time.perf_counter()
        yield
        self._loop += time.perf_counter() - self._began

    def _step(self) -> float:
        """Return the seconds of a healthy step: between calls of the optimizer, the mean without the slow first ones."""
        gaps = [(later - earlier) / self._together for earlier, later in pairwise(self._stepped)]
        if len(gaps) < ENOUGH:
            return self._loop / self.steps
        usual = statistics.median(gaps)
        return statistics.fmean(gap for gap in gaps if gap < RARE * usual)

    def _share(self, what) -> float:
        """Return the part of the loop that an activity takes.

        The first step imports the compiler of PyTorch, and a profiler may start something between two steps. So the few
        longest times between two occurrences count as at most a few times the usual, if it occurs at every step.
        """
        spent, rest = self._seconds[what], self._loop - self._seconds[what]
        gaps = sorted(self._gaps[what], reverse=True)[: self.steps]
        if len(gaps) >= max(ENOUGH, self.steps - 1):
            usual = statistics.median(gaps)
            rest -= sum(gap - usual for gap in gaps[:FEW] if gap > RARE * usual)
        return spent / max(spent + rest, 1e-9)

    def close(self, **facts):
        """Write the diary."""
        if self._diary:
            diary = {
                "total": time.perf_counter() - self._started,
                "loop": self._loop,
                "step": self._step(),
                "steps": self.steps,
                "samples": self.samples or self.steps,
                "usual": self._usual,
                "seconds": self._seconds,
                "shares": {what: self._share(what) for what in self._seconds},
                "counts": self._counts,
                **facts,
            }
            Path(self._diary).write_text(json.dumps(diary))
