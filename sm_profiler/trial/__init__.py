"""A script's own DataLoader under several settings, in a process of the script, without training: the plan and its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

WORTH = 1.05  # times the throughput that more workers or a deeper queue must bring to be better
BUSY = 0.2  # of the machine's processor time; settings that use more cores suffer most from other programs
ENOUGH = 1.2  # times the batches that the loop takes; during a training, a loader is slower than alone


@attrs.define
class LoaderSetting:
    """Arguments of a DataLoader.

    Attributes:
        prefetch_factor: batches each worker may be ahead; None without workers.
        pin_memory: whether batches are copied to pinned memory.
    """

    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool


@attrs.frozen
class Plan:
    """Settings to try.

    Attributes:
        seconds: time measured for each setting.
        prefetch: values of prefetch_factor.
        loader: number of the loader among those that the script iterates over, from 1; 0: the first with gradients
            enabled.
        memory: bytes that all workers together may take; 0 if unknown.
    """

    result: str
    seconds: float
    workers: Sequence[int]
    prefetch: Sequence[int]
    loader: int = 0
    memory: int = 0


@attrs.define
class LoaderTrial(LoaderSetting):
    """One setting and its result.

    Attributes:
        current: they are the script's own.
        batches: batches received.
        per_second: batches a second after the first; None if the trial failed or was left out.
        first_s: seconds until the first batch, which each epoch takes again without persistent workers.
        problem: why the trial failed or was left out.
    """

    current: bool = False
    batches: int = 0
    per_second: float | None = None
    first_s: float | None = None
    problem: str = ""

    @property
    def setting(self) -> LoaderSetting:
        return LoaderSetting(self.num_workers, self.prefetch_factor, self.pin_memory)

    def delivers(self, needed: float | None = None) -> float:
        """Return the batches a second that the loop gets: loading between its steps without workers, else meanwhile.

        Args:
            needed: batches a second that the loop needs if it does not wait; None if unknown.
        """
        alone = self.per_second or 0.0
        if not needed or not alone:
            return alone
        return min(alone / ENOUGH, needed) if self.num_workers else 1 / (1 / alone + 1 / needed)


@attrs.frozen
class LoaderTrials:
    """Results of all trials.

    Attributes:
        trials: in the order in which they were made.
        dataset: type of the dataset.
        batch_size: samples a batch; None if it varies.
        persistent_workers: the script's own setting.
        iterable: the dataset is an IterableDataset, whose workers must divide the data themselves.
        loaders: loaders that the script iterated over until then.
        interrupted: the user stopped the trials.
        others: share of the machine's processor time that other programs used meanwhile; None if unknown.
    """

    trials: tuple[LoaderTrial, ...]
    dataset: str = ""
    batch_size: int | None = None
    persistent_workers: bool = False
    iterable: bool = False
    loaders: int = 1
    interrupted: bool = False
    others: float | None = None

    @property
    def measured(self) -> list[LoaderTrial]:
        return [trial for trial in self.trials if trial.per_second]

    @property
    def now(self) -> LoaderTrial | None:
        """The trial of the script's own settings, if it was measured."""
        return next((trial for trial in self.measured if trial.current), None)

    def best(self, needed: float | None = None) -> LoaderTrial | None:
        """Return the best trial: the smallest setting that is about as good as the best.

        Args:
            needed: batches a second that the loop needs if it does not wait; None if unknown.
        """
        if not self.measured:
            return None
        limit = max(trial.delivers(needed) for trial in self.measured) / WORTH
        return min(
            (trial for trial in self.measured if trial.delivers(needed) >= limit),
            key=lambda trial: (
                needed is None and not trial.num_workers,  # what workers load, the loop does not wait for
                trial.num_workers,
                trial.prefetch_factor or 0,
                not trial.current,
            ),
        )

    @classmethod
    def of(cls, found: dict[str, Any]) -> LoaderTrials:
        return cls(**{**found, "trials": tuple(LoaderTrial(**trial) for trial in found["trials"])})
