"""The part of batches of sequences that is padding: by their mask, or by what fills their ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sm_profiler.hook.guard import pass_on

MASK = "attention_mask"  # of a batch of sequences
BATCHES = 200  # of sequences give their mean length within a few percent,
TOKENS = 2_000_000  # and so do so many tokens
LENGTHS = 3  # different ones, at least, in a batch that was padded, and of batches that each fit their longest sequence
STRAY = 0.01  # of all padding tokens, at most, are inside of sequences
_TOKENS, _MASK, _SERIES = ("torch.int64", "torch.int32"), ("torch.bool",), ("torch.float32", "torch.float64")


class Padding:
    """Counts the padding of the first batches.

    Attributes:
        left: batches that are still inspected.
        inferred: it was counted by tokens, or by zeros: the model may skip what they fill.
    """

    def __init__(self) -> None:
        self.left = BATCHES
        self.inferred = False
        self._tokens = [0, 0, 0]  # of these batches; without padding; up to the longest sequence of each batch
        self._series = [0, 0, 0]  # the same of batches of numbers, filled up with zeros
        self._lengths: set[int] = set()  # of these

    def see(self, batch: Any) -> None:
        """Count the padding of a batch, if it has sequences in the memory of the CPU."""
        try:
            self.left -= 1
            if isinstance(batch, Mapping) and MASK in batch:
                mask = batch[MASK]
                filled = mask.numpy() != 0 if mask.device.type == "cpu" and mask.ndim == 2 else None
                self._count(self._tokens, filled)
                return
            values = tuple(_values(batch))
            if not self._count(self._tokens, _first(values, _MASK)):
                if self._count(self._tokens, _first(values, _TOKENS)):
                    self.inferred = True
                elif self._count(self._series, found := _first(values, _SERIES)):
                    self._lengths.add(found.shape[1])
        except Exception as error:  # a mapping of the script's, or no tensor
            self.left = 0
            pass_on(error)

    def _count(self, counts: list[int], filled: Any) -> bool:
        """Add a batch, and return whether there is one; of many tokens, further ones change nothing."""
        if filled is None:
            return False
        more = filled.size, int(filled.sum()), int(filled.any(0).sum()) * len(filled)
        counts[:] = [own + each for own, each in zip(counts, more, strict=True)]
        if counts[0] > TOKENS:
            self.left = 0
        return True

    def parts(self) -> tuple[float | None, float | None]:
        """Return the part of the batches that is padding, and the part beyond the longest sequence of each; None without any."""
        whole, *filled = self._tokens
        if not whole and len(self._lengths) >= LENGTHS:  # pictures with a black border are all of one height
            self.inferred = True
            whole, *filled = self._series
        found = [round(1 - part / whole, 4) if whole else None for part in filled]
        return found[0], found[1]


def _values(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    return batch if isinstance(batch, list | tuple) else (batch,)


def _first(values: Iterable[Any], kinds: tuple[str, ...]) -> Any:
    """Return `_filled` of the first tensor of some types that is a padded batch; None without any."""
    fitting = (value for value in values if str(getattr(value, "dtype", "")) in kinds)
    return next((found for found in map(_filled, fitting) if found is not None), None)


def _filled(value: Any) -> Any:
    """Return which tokens of a tensor are none of the padding, shape (sequences, tokens); None if it is no padded batch.

    One token fills the ends of sequences of different lengths, or their beginnings, and is hardly ever inside of them. Steps
    of a series, whose numbers are in a third dimension, are filled with zeros.
    """
    series = value.is_floating_point()
    if value.device.type != "cpu" or value.ndim not in ((2, 3) if series else (2,)) or value.numel() > TOKENS:
        return None
    import numpy as np  # with the first batch of tokens

    tokens = value.detach().numpy()
    if series and all(tokens[:, end].reshape(len(tokens), -1).any(-1).all() for end in (0, -1) if tokens.size):
        return None  # nothing is filled, as in most tensors
    tokens = tokens.any(-1) if value.ndim == 3 else tokens
    for side in (tokens[:, ::-1], tokens):
        if not side.size:
            continue
        candidates, counts = np.unique(side[:, 0], return_counts=True)
        fill = candidates[counts.argmax()]
        if series and fill:
            continue
        fills = side == fill
        run = np.logical_and.accumulate(fills, axis=1)
        lengths = run.sum(axis=1)
        if (
            lengths.sum() > len(side)
            and len(np.unique(lengths)) >= LENGTHS
            and (fills & ~run).sum() <= STRAY * fills.sum()
        ):
            return ~run[:, ::-1] if side is not tokens else ~run
    return None
