"""Trials of a loader: which settings are tried, how they are measured, and which is best."""

import argparse
import json
import random

import attrs
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sm_profiler.cli.try_loader import counts, resources, share_of_others, trial_table
from sm_profiler.trial import LoaderSetting, LoaderTrial, LoaderTrials, Plan
from sm_profiler.trial.__main__ import copy_of, own_setting, try_loader

PLAN = Plan("", 0.05, (0,), (2,))


class Failing(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        raise ValueError("first line\nno such image")


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(10_000))


class Remembering(Dataset):
    """Draws from the random generators and remembers the first samples of each trial."""

    def __init__(self):
        self.seen = []

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.seen.append((index, random.random(), float(torch.rand(()))))  # not a secret
        return index


def run(loader, plan=PLAN):
    reports = []
    outcome = try_loader(loader, plan, reports.append)
    assert [len(one.trials) for one in reports] == list(range(1, len(outcome.trials) + 1))
    return outcome


def test_script_s_own_setting_is_measured_first_and_once():
    outcome = run(DataLoader(TensorDataset(torch.zeros(64, 2)), batch_size=4))
    (trial,) = outcome.trials
    assert trial.current
    assert trial.setting == LoaderSetting(0, None, False)
    assert trial.per_second > 10
    assert trial.batches > 16  # epochs are repeated until the time is over
    assert (outcome.dataset, outcome.batch_size, outcome.iterable) == ("TensorDataset", 4, False)


def test_best_number_of_workers_is_tried_with_deeper_queues():
    outcome = run(
        DataLoader(TensorDataset(torch.zeros(64, 2)), batch_size=4, num_workers=1),
        attrs.evolve(PLAN, workers=(1,), prefetch=(2, 4)),
    )
    assert [trial.setting for trial in outcome.trials] == [LoaderSetting(1, 2, False), LoaderSetting(1, 4, False)]
    assert all(trial.per_second for trial in outcome.trials)


def test_every_trial_loads_the_same_samples():
    dataset = Remembering()
    loader = DataLoader(dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))
    plan = attrs.evolve(PLAN, seconds=0.001)
    run(loader, plan)
    first, dataset.seen = dataset.seen[:4], []
    loader.generator.manual_seed(3)
    run(loader, plan)
    assert [index for index, *_ in dataset.seen[:4]] == [index for index, *_ in first]


def test_error_of_the_dataset_is_reported_in_one_line():
    outcome = run(DataLoader(Failing()))
    assert outcome.trials[0].problem == "ValueError: no such image"
    assert outcome.best() is None
    assert "No setting delivered a batch." in trial_table(outcome)


@pytest.mark.parametrize("size", [None, 8])
def test_iterable_datasets_are_recognized(size):
    outcome = run(DataLoader(Numbers(), batch_size=size))
    assert outcome.iterable
    assert outcome.trials[0].per_second
    two = LoaderTrial(2, 2, False, per_second=1e9)
    assert "each worker must load its own part" in trial_table(attrs.evolve(outcome, trials=(*outcome.trials, two)))


def test_loader_without_batches_has_no_throughput():
    outcome = run(DataLoader(TensorDataset(torch.zeros(0, 2))))
    assert outcome.trials[0].problem == "the loader has no batch"


def test_copy_keeps_what_is_not_tried():
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(10)), 3, True)
    loader = DataLoader(list(range(10)), batch_sampler=sampler, collate_fn=sum)
    made = copy_of(loader, LoaderSetting(2, 4, False))
    assert made.batch_sampler is sampler
    assert made.collate_fn is sum
    assert (made.num_workers, made.prefetch_factor) == (2, 4)
    assert list(copy_of(loader, own_setting(loader))) == [3, 12, 21]
    assert copy_of(DataLoader(list(range(10)), batch_size=None), LoaderSetting(0, None, False)).batch_size is None


def test_workers_that_need_too_much_memory_are_left_out(monkeypatch):
    monkeypatch.setattr("sm_profiler.trial.__main__._bytes_of_workers", lambda _: 1_000)
    outcome = run(DataLoader(list(range(64))), attrs.evolve(PLAN, workers=(0, 1, 4), memory=2_000))
    problems = {trial.num_workers: trial.problem for trial in outcome.trials}
    assert problems[1] == ""
    assert "memory" in problems[4]


def outcome_of(*rates, current=0):
    trials = [
        LoaderTrial(workers, 2 if workers else None, False, workers == current, 100, rate, 0.1)
        for workers, rate in rates
    ]
    return LoaderTrials(tuple(trials), "Images", 32)


def test_best_is_the_smallest_setting_that_is_about_the_fastest():
    outcome = outcome_of((0, 10.0), (2, 30.0), (4, 57.0), (8, 58.0), (16, 40.0))
    assert outcome.best().num_workers == 4


def test_best_is_the_smallest_that_suffices_if_the_need_is_known():
    outcome = outcome_of((0, 10.0), (2, 30.0), (4, 57.0), (8, 58.0))
    assert outcome.best(20.0).num_workers == 2
    assert outcome.best(1000.0).num_workers == 4


@pytest.mark.parametrize(("needed", "workers"), [(None, 2), (10.0, 1), (1.0, 0), (200.0, 0)])
def test_without_workers_loading_adds_to_each_step(needed, workers):
    """No workers were enough as soon as they loaded faster than the loop computes, although the loop waits for them."""
    outcome = outcome_of((0, 40.0), (1, 30.0), (2, 41.0))
    assert outcome.best(needed).num_workers == workers


def test_table_shows_what_the_loop_gets_without_workers():
    outcome = outcome_of((0, 40.0))
    assert (
        trial_table(outcome, 40.0)
        .splitlines()[-1]
        .startswith(
            "Without waiting, the loop needs 40.0 batches/s (25 ms per step); if it loads them itself, between its steps, "
            "it gets 20.0: not enough."
        )
    )
    assert trial_table(outcome, 1.0).endswith("it gets 1.0: enough.")
    slower = trial_table(outcome_of((0, 40.0), (1, 39.0)), 20.0)
    assert "39.0 batches/s, loaded while the loop computes; now 40.0, for which it waits." in slower
    assert slower.endswith("enough.")


def test_no_setting_is_best_if_the_training_keeps_all_cores_busy():
    """Workers were recommended, although the report of the same profile advised against them."""
    text = trial_table(outcome_of((0, 40.0), (1, 39.0), (2, 75.0)), 60.0, "", "Reduce preprocessing.")
    assert "best" not in text.lower()
    assert "enough" not in text
    assert "Fastest while nothing is trained: num_workers=2" in text
    assert text.endswith("\nReduce preprocessing.")


def test_table_names_the_best_setting_and_what_the_loop_takes():
    outcome = outcome_of((0, 10.0), (2, 30.0), (4, 57.0))
    text = trial_table(outcome, 20.0)
    assert "Best: num_workers=2, prefetch_factor=2, pin_memory=False, persistent_workers=True: 30.0 batches/s" in text
    assert "3 times as many as now (10.0)" in text
    assert "needs 20.0 batches/s" in text
    assert "With it, the loop makes about 20.0 steps/s instead of 6.7: 3 times as fast.\n" in text
    assert text.endswith("enough.")
    rows = text.splitlines()[2:5]
    assert [row.endswith("enough for the loop") for row in rows] == [False, True, True]
    assert "enough for the loop" not in trial_table(outcome)
    assert trial_table(outcome, 20.0, "It needs more.").endswith("enough.\nIt needs more.")
    assert "not enough" in trial_table(outcome, 100.0)
    assert "just enough" in trial_table(outcome, 50.0)
    assert "as in the script, best" in trial_table(outcome_of((0, 10.0)))


@pytest.mark.parametrize(("others", "warned"), [(None, False), (0.1, False), (0.8, True)])
def test_table_warns_that_other_programs_had_the_cores(others, warned):
    """On a busy machine more workers lose, and the table recommended none without a word."""
    outcome = attrs.evolve(outcome_of((0, 10.0), (2, 9.0)), others=others)
    assert ("Other programs used 80 %" in trial_table(outcome)) is warned


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ((100.0, 50.0, 5.0), (120.0, 66.0, 9.0), 0.6),
        ((100.0, 50.0, 5.0), (120.0, 66.0, 30.0), 0.0),
        (None, (1.0, 1.0, 1.0), None),
    ],
)
def test_processor_time_of_others_is_what_the_script_did_not_use(before, after, share):
    assert share_of_others(before, after) == share


def test_outcome_survives_json():
    outcome = attrs.evolve(outcome_of((0, 10.0), (2, 30.0)), interrupted=True)
    assert LoaderTrials.of(json.loads(json.dumps(attrs.asdict(outcome)))) == outcome


def test_counts_are_checked():
    assert counts("0,2,2,8") == (0, 2, 8)
    for text in ("", "a", "-1", "1000000", "2;4"):
        with pytest.raises(argparse.ArgumentTypeError):
            counts(text)


def test_resources_are_known_here():
    cores, memory = resources()
    assert cores >= 1
    assert memory >= 0
