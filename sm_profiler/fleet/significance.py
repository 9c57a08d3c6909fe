"""Probabilities that what jobs have in common is chance."""

from __future__ import annotations

import math
from collections.abc import Sequence

EXACT = 1000  # trials; the number of operations grows with their square


def at_least(count: int, chances: Sequence[float]) -> float:
    """Return the probability of at least `count` successes in trials of different chances."""
    mean = math.fsum(chances) / max(len(chances), 1)
    share = count / max(len(chances), 1)
    if count <= 0 or share <= mean:  # more than about a half: no test asks how much more
        return 1.0
    if len(chances) > EXACT:
        return math.exp(-len(chances) * _divergence(min(share, 1.0), mean))  # Chernoff's bound, never too small
    # state: probability of each number of successes; the last one is that of `count` or more
    state = [1.0] + [0.0] * count
    for chance in chances:
        state[count] += state[count - 1] * chance
        for number in range(count - 1, 0, -1):
            state[number] = state[number] * (1 - chance) + state[number - 1] * chance
        state[0] *= 1 - chance
    return min(state[count], 1.0)


def drawn_at_least(count: int, drawn: int, marked: int, total: int) -> float:
    """Return the probability that at least `count` of `drawn` jobs are among the `marked` ones of `total`."""
    if count <= max(0, drawn + marked - total):
        return 1.0
    whole = _log_choose(total, drawn)
    logs = [
        _log_choose(marked, number) + _log_choose(total - marked, drawn - number) - whole
        for number in range(count, min(drawn, marked) + 1)
    ]
    return min(math.fsum(math.exp(log) for log in logs), 1.0)


def _log_choose(total: int, drawn: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(drawn + 1) - math.lgamma(total - drawn + 1)


def _divergence(share: float, mean: float) -> float:
    """Return how far a share is from its mean, as the relative entropy."""
    if mean <= 0.0:
        return math.inf
    rest = (1 - share) * math.log((1 - share) / (1 - mean)) if share < 1.0 else 0.0
    return share * math.log(share / mean) + rest
