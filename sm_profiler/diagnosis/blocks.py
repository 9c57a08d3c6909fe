"""Blocks of consecutive rows: how much another draw of the same steps would differ, and whether they go on growing."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.formats.columns import Floats, Ints

MAX_BLOCKS = 2_000  # bounds the time for long jobs


@attrs.frozen(eq=False)
class Blocks:
    """Blocks of consecutive rows of a loop.

    Attributes:
        starts: first row of each block.
        sizes: number of rows of each block.
        seconds: seconds of each block.
        weights: how often each block is drawn in each round; shape (rounds, blocks).
    """

    starts: Ints
    sizes: Floats
    seconds: Floats
    weights: Floats

    @classmethod
    def of(cls, lengths: Floats, draw: np.random.Generator | None = None) -> Blocks:
        """Cut rows into blocks of about the cube root of their number, because neighbours resemble each other.

        Args:
            lengths: seconds of each row.
            draw: default: the same draws each time.
        """
        count = len(lengths)
        size = max(round(count ** (1 / 3)), -(-count // MAX_BLOCKS), 1)
        starts = np.arange(0, count, size, dtype=np.int64)
        draw = draw or np.random.default_rng(limits.SEED)
        weights = draw.multinomial(len(starts), np.full(len(starts), 1 / len(starts)), limits.ROUNDS)
        sizes = np.diff(starts, append=count).astype(np.float64)
        return cls(starts, sizes, np.add.reduceat(lengths, starts), weights.astype(np.float64))

    def sums(self, rows: Floats) -> Floats:
        """Return sums over the rows of each block; rows are the last axis."""
        return np.asarray(np.add.reduceat(rows, self.starts, axis=-1))

    def means(self, seconds: Floats) -> Floats:
        """Return the mean of a row in each round, of some seconds of each block."""
        return np.asarray((self.weights @ seconds) / np.maximum(self.weights @ self.sizes, 1.0))

    def error_of_part(self, seconds: Floats) -> tuple[float, float]:
        """Return how far below and above its value the share of the rows may lie that some seconds of each block are.

        It is that of the share, or of the seconds alone where a few long blocks make up most of the rest.
        """
        whole = self.seconds.sum()
        of_share = _around(
            self.weights @ seconds / np.maximum(self.weights @ self.seconds, 1e-12), seconds.sum() / whole
        )
        of_mean = self.error_of_mean(seconds)
        below, above = (
            min(one, other * float(self.sizes.sum() / whole)) for one, other in zip(of_share, of_mean, strict=True)
        )
        return below, above

    def error_of_mean(self, seconds: Floats) -> tuple[float, float]:
        """Return how far below and above its value the mean of a row may lie, of some seconds of each block."""
        return _around(self.means(seconds), seconds.sum() / self.sizes.sum())


def growth_of_blocks(blocks: Floats, at: int) -> float:
    """Return by how much each block is longer than the one before it, of blocks that are longer from a number on.

    It is 0 if a step describes the blocks better than a line, or if they do not go on growing to the end.
    """
    early, late = (float(np.median(half)) for half in np.array_split(blocks[at:], 2))
    if late - early < limits.USUAL * float(np.median(blocks[at:]) - np.median(blocks[:at])):
        return 0.0
    x = np.arange(len(blocks))
    fitted = np.polyfit(x, blocks, 1)
    step = np.concatenate([blocks[:at] - blocks[:at].mean(), blocks[at:] - blocks[at:].mean()])
    return float(fitted[0]) if np.linalg.norm(blocks - np.polyval(fitted, x)) < np.linalg.norm(step) else 0.0


def _around(draws: Floats, value: float) -> tuple[float, float]:
    tail = (1 - limits.INTERVAL) / 2
    low, high = np.quantile(draws, (tail, 1 - tail))
    return max(float(value - low), 0.0), max(float(high - value), 0.0)
