"""Statistics of a loop's rows: blocks of consecutive steps, and the error of means computed from them."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.report import policy

MAX_BLOCKS = 2_000  # bounds the time for long jobs
ROUNDS = 400  # resamples; the ends of a 90 % interval then vary by a twentieth of its width
SEED = 20240229  # fixed, so that the same profile always gives the same interval
SEGMENTS = 8  # of the loop, whose differences show how steady the machine is


@attrs.frozen(eq=False)
class Blocks:
    """Blocks of consecutive rows of a loop.

    Attributes:
        starts: first row of each block.
        sizes: number of rows of each block.
        seconds: seconds of each block.
        weights: how often each block is drawn in each round; shape (ROUNDS, blocks).
    """

    starts: Ints
    sizes: Floats
    seconds: Floats
    weights: Floats

    @classmethod
    def of(cls, lengths: Floats) -> Blocks:
        """Cut rows into blocks of about the cube root of their number, because neighbours resemble each other."""
        count = len(lengths)
        size = max(round(count ** (1 / 3)), -(-count // MAX_BLOCKS), 1)
        starts = np.arange(0, count, size, dtype=np.int64)
        draw = np.random.default_rng(SEED)
        weights = draw.multinomial(len(starts), np.full(len(starts), 1 / len(starts)), ROUNDS)
        sizes = np.diff(starts, append=count).astype(np.float64)
        return cls(starts, sizes, np.add.reduceat(lengths, starts), weights.astype(np.float64))

    def sums(self, rows: Floats) -> Floats:
        """Return sums over the rows of each block; rows are the last axis."""
        return np.asarray(np.add.reduceat(rows, self.starts, axis=-1))

    def error_of_mean(self, seconds: Floats) -> tuple[float, float]:
        """Return how far below and above its value the mean of a row may lie, of some seconds of each block."""
        drawn = self.weights @ self.sizes
        means = (self.weights @ seconds) / np.maximum(drawn, 1.0)
        value = float(seconds.sum() / self.sizes.sum())
        tail = (1 - policy.GAIN_INTERVAL) / 2
        low, high = np.quantile(means, (tail, 1 - tail))
        return max(value - float(low), 0.0), max(float(high) - value, 0.0)


def unsteadiness(rows: Floats) -> float:
    """Return how much the median step differs between segments of the loop, as a share: drift and other load."""
    if len(rows) < SEGMENTS:
        return float(policy.GAIN_REPEAT)
    medians = np.asarray([np.median(one) for one in np.array_split(rows, SEGMENTS)])
    mean = float(medians.mean())
    found = float(medians.std()) / mean if mean > 0 else 0.0
    return min(max(found, float(policy.GAIN_REPEAT)), float(policy.GAIN_REPEAT_MOST))
