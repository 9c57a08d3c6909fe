"""The part of batches of sequences that is padding: by their attention mask, or by the token that fills their ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sm_profiler.hook.guard import pass_on

MASK = "attention_mask"  # of a batch of sequences
BATCHES = 200  # of sequences give their mean length within a few percent,
TOKENS = 2_000_000  # and so do so many tokens
LENGTHS = 3  # different ones, at least, of a batch that was padded
STRAY = 0.01  # of all padding tokens, at most, are inside of sequences


class Padding:
    """Counts the padding of the first batches.

    Attributes:
        left: batches that are still inspected.
        inferred: it was counted by tokens: the model may skip what they fill.
    """

    def __init__(self) -> None:
        self.left = BATCHES
        self.inferred = False
        self._tokens = [0, 0, 0]  # of these batches; without padding; up to the longest sequence of each batch

    def see(self, batch: Any) -> None:
        """Count the padding of a batch, if it has sequences in the memory of the CPU."""
        try:
            self.left -= 1
            if isinstance(batch, Mapping) and MASK in batch:
                mask = batch[MASK]
                filled = mask.numpy() != 0 if mask.device.type == "cpu" and mask.ndim == 2 else None
            else:
                filled = next((found for found in map(_filled, _values(batch)) if found is not None), None)
                self.inferred |= filled is not None
            if filled is not None:
                more = filled.size, int(filled.sum()), int(filled.any(0).sum()) * len(filled)
                self._tokens = [own + each for own, each in zip(self._tokens, more, strict=True)]
                if self._tokens[0] > TOKENS:
                    self.left = 0
        except Exception as error:  # a mapping of the script's, or no tensor
            self.left = 0
            pass_on(error)

    def parts(self) -> tuple[float | None, float | None]:
        """Return the part of the batches that is padding, and the part beyond the longest sequence of each; None without any."""
        whole, *filled = self._tokens
        found = [round(1 - part / whole, 4) if whole else None for part in filled]
        return found[0], found[1]


def _values(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    return batch if isinstance(batch, list | tuple) else (batch,)


def _filled(value: Any) -> Any:
    """Return which tokens of a tensor are none of the padding, shape (sequences, tokens); None if it is no padded batch.

    One token fills the ends of sequences of different lengths, or their beginnings, and is hardly ever inside of them.
    """
    kind = str(getattr(value, "dtype", ""))
    if kind not in ("torch.int64", "torch.int32") or value.ndim != 2 or value.device.type != "cpu":
        return None
    import numpy as np  # with the first batch of tokens

    tokens = value.numpy()
    for side in (tokens[:, ::-1], tokens):
        if not side.size:
            continue
        candidates, counts = np.unique(side[:, 0], return_counts=True)
        fills = side == candidates[counts.argmax()]
        run = np.logical_and.accumulate(fills, axis=1)
        lengths = run.sum(axis=1)
        if (
            lengths.sum() > len(side)
            and len(np.unique(lengths)) >= LENGTHS
            and (fills & ~run).sum() <= STRAY * fills.sum()
        ):
            return ~run[:, ::-1] if side is not tokens else ~run
    return None
