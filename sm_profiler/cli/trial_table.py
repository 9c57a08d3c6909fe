"""Results of a trial as text."""

from __future__ import annotations

from sm_profiler.formatting import duration, percent
from sm_profiler.printable import printable
from sm_profiler.trial.plan import BUSY, WORTH, Outcome, Setting, Trial

HEAD = ("num_workers", "prefetch_factor", "pin_memory", "batches/s", "first batch", "")


def trial_table(outcome: Outcome, needed: float | None = None) -> str:
    """Return the table of all trials, the best one, and what it means for the loop.

    Args:
        outcome: the results.
        needed: batches a second that the loop needs if it does not wait; None if unknown.
    """
    batch = f", batches of {outcome.batch_size}" if outcome.batch_size else ""
    lines = [f"{printable(outcome.dataset)}{batch}"]
    rows = [HEAD, *(_row(trial, outcome.best(needed)) for trial in outcome.trials)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(f"  {'  '.join(cells)}  {row[-1]}".rstrip())
    return "\n".join([*lines, *advice(outcome, needed)])


def _row(trial: Trial, best: Trial | None) -> tuple[str, ...]:
    setting = trial.setting
    notes = [note for note, is_so in (("as in the script", trial.current), ("best", trial is best)) if is_so]
    return (
        str(setting.num_workers),
        str(setting.prefetch_factor or "-"),
        "yes" if setting.pin_memory else "no",
        f"{trial.per_second:,.1f}" if trial.per_second else "-",
        duration(trial.first_s) if trial.first_s is not None else "-",
        printable(trial.problem) or ", ".join(notes),
    )


def advice(outcome: Outcome, needed: float | None) -> list[str]:
    """Return the sentences below the table."""
    best = outcome.best(needed)
    if best is None or best.per_second is None:
        return ["No setting delivered a batch."]
    lines = [f"Best: {written(best.setting)}: {best.per_second:,.1f} batches/s{_compared(outcome, best)}."]
    if needed:
        lines.append(_enough(best, needed))
    if (outcome.others or 0.0) >= BUSY:
        lines.append(
            f"Other programs used {percent(outcome.others or 0.0)} of the machine's processor time meanwhile, so settings with "
            "more workers look slower than they are. Repeat this while the machine is less busy."
        )
    if outcome.iterable and best.setting.num_workers > 1:
        lines.append(
            "The dataset is an IterableDataset: each worker must load its own part of the data (get_worker_info), "
            "otherwise every worker delivers all of it."
        )
    return lines


def written(setting: Setting) -> str:
    """Return the arguments of the DataLoader."""
    if not setting.num_workers:
        return f"num_workers=0, pin_memory={setting.pin_memory}"
    return (
        f"num_workers={setting.num_workers}, prefetch_factor={setting.prefetch_factor}, pin_memory={setting.pin_memory}, "
        "persistent_workers=True"
    )


def _compared(outcome: Outcome, best: Trial) -> str:
    now = outcome.now
    if best.current:
        return ", as in the script"
    if now is None or not now.per_second or not best.per_second:
        return ""
    if not now.setting.num_workers and best.per_second <= now.per_second:
        return f", loaded while the loop computes; now {now.per_second:,.1f}, for which it waits"
    return f", {best.per_second / now.per_second:.2g} times as many as now ({now.per_second:,.1f})"


def _enough(best: Trial, needed: float) -> str:
    takes = f"Without waiting, the loop needs {needed:,.1f} batches/s ({duration(1 / needed)} per step)"
    rate = best.delivers(needed)
    if not best.setting.num_workers:
        takes += f"; if it loads them itself, between its steps, it gets {rate:,.1f}"
    if rate * WORTH >= needed:
        return f"{takes}: enough."
    if best.setting.num_workers and (best.per_second or 0.0) >= needed:
        return f"{takes}: just enough; during the training, loading is slower than alone."
    return f"{takes}: not enough. Load less for each batch: cache what is computed each time, read larger files."
