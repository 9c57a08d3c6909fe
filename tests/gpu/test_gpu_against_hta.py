"""Tables of `GpuTraces` against HolisticTraceAnalysis' on the same real traces.

The two differ if HolisticTraceAnalysis is wrong, each time for one of these reasons:
- it rounds nanoseconds: starts up and ends down to whole microseconds (amd, triton);
- it counts the events of `cuda_sync` as kernels (alexnet: 41 of them) except in the idle times of streams;
- it counts an operator whose arguments name a stream as a kernel (triton);
- where it sums up the rarer kernels as `others`, the longest, shortest and mean of each kernel are those of the sums by name;
- it subtracts from the idle time what kernels of one stream overlap (diff_test);
- it finds no launches of AMD and Triton kernels (amd, triton).
"""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sm_profiler.analysis.gpu import GpuTraces
from sm_profiler.gpu_traces import intervals

TRACES = Path(__file__).parents[1] / "data" / "gpu_traces"
MORE = os.environ.get("SM_PROFILER_GPU_TRACES", "").partition(os.pathsep)[
    0
]  # a folder of further traces with their hta.json
FOLDERS = list({  # the copies here come last, and count
    file.parent.name: file.parent for root in filter(None, [MORE, TRACES]) for file in sorted(Path(root).glob("*/hta.json"))
}.values())  # fmt: skip
ROUNDED = {"amd", "triton", "nccl"}  # traces with nanoseconds


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def folder(request):
    return request.param


@pytest.fixture(scope="module")
def gpu(folder):
    return GpuTraces(folder)


@pytest.fixture(scope="module")
def expected(folder):
    return json.loads((folder / "hta.json").read_text())


def table(saved):
    return pd.DataFrame(saved["data"], columns=saved["columns"])


def rounding(folder, events):
    """Return the error that rounding to whole microseconds may cause: two a kernel and gap."""
    return 2.0 * events + 2 if folder.name in ROUNDED else 0.5


def kernels_of(gpu, rank):
    events = gpu.ranks[rank].events
    return int(events.on_device.sum())


def overlaps(events, stream):
    """Return how much kernels of one stream overlap."""
    chosen = events[events.on_device & (events.stream == stream)]
    return float(chosen.duration_us.sum()) - intervals.total(chosen.start_us, chosen.end_us)


def by_rank(gpu, frame):
    """Yield our rank and HolisticTraceAnalysis' row; it numbers the files, we take the rank that a trace names."""
    for position, rank in enumerate(gpu.ranks):
        yield rank, frame[frame["rank"] == position]


def test_temporal_breakdown(folder, gpu, expected):
    if folder.name in {"alexnet", "triton"}:
        pytest.skip("HolisticTraceAnalysis counts events that are no kernels")
    ours = gpu.temporal_breakdown().set_index("rank")
    columns = {"idle_us": "idle_time(us)", "compute_us": "compute_time(us)", "non_compute_us": "non_compute_time(us)"}
    for rank, row in by_rank(gpu, table(expected["temporal"][0])):
        for own, theirs in {**columns, "total_us": "kernel_time(us)"}.items():
            allowed = rounding(folder, kernels_of(gpu, rank))
            assert ours.loc[rank, own] == pytest.approx(float(row[theirs].iloc[0]), abs=allowed), own


def test_idle_breakdown(folder, gpu, expected):
    ours = gpu.idle_breakdown()
    for rank, rows in by_rank(gpu, table(expected["idle"][0])):
        for row in rows.itertuples():
            found = ours.query("rank == @rank and stream == @row.stream and category == @row.idle_category")
            allowed = rounding(folder, kernels_of(gpu, rank)) + overlaps(gpu.ranks[rank].events, row.stream)
            assert float(found["idle_us"].iloc[0]) == pytest.approx(row.idle_time, abs=allowed)
            if row.idle_time_ratio is not None and not np.isnan(row.idle_time_ratio):
                assert float(found["share"].iloc[0]) == pytest.approx(row.idle_time_ratio, abs=0.0101)


def test_kernels(folder, gpu, expected):
    if folder.name in {"triton", "amd"}:
        pytest.skip("kernels shorter than the rounding")
    ours = gpu.kernels()
    for rank, rows in by_rank(gpu, table(expected["kernels"][1])):
        grouped = bool(rows["name"].eq("others").any())
        for row in rows[rows["name"] != "others"].itertuples(index=False):
            name, total, longest, shortest, _, mean = row[:6]
            if name.endswith("Sync"):
                continue
            found = ours[(ours["rank"] == rank) & (ours["name"] == name)].iloc[0]
            rounded = folder.name in ROUNDED
            assert found["sum_us"] == pytest.approx(total, abs=2.0 * found["count"] if rounded else 1e-6)
            assert found["kind"] == row.kernel_type.lower()
            if not grouped:
                assert found["max_us"] == pytest.approx(longest, abs=2 if rounded else 0)
                assert found["min_us"] == pytest.approx(shortest, abs=2 if rounded else 0)
                assert found["mean_us"] == pytest.approx(mean, abs=2 if rounded else 1e-6)


def test_kinds(folder, gpu, expected):
    if folder.name in {"alexnet", "triton"}:
        pytest.skip("HolisticTraceAnalysis counts events that are no kernels")
    ours = gpu.kinds().groupby("kind")["sum_us"].sum()
    allowed = sum(rounding(folder, kernels_of(gpu, rank)) for rank in gpu.ranks)
    for row in table(expected["kernels"][0]).itertuples():
        kind = row.kernel_type.lower().replace(" overlapping ", " and ")
        assert ours[kind] == pytest.approx(row.sum, abs=allowed)


def test_communication_overlap(folder, gpu, expected):
    ours = gpu.communication_overlap().set_index("rank")
    for rank, row in by_rank(gpu, table(expected["overlap"][0])):
        share = row["comp_comm_overlap_pctg"].iloc[0]
        if share is None or np.isnan(share):
            assert np.isnan(ours.loc[rank, "share_hidden"])
        else:
            assert 100 * ours.loc[rank, "share_hidden"] == pytest.approx(
                share, abs=0.5 if folder.name in ROUNDED else 0.0051
            )


def test_launch_statistics(folder, gpu, expected):
    launches = expected["launch"]
    if isinstance(launches, list):  # the whole table
        launches = {
            rank: {"count": len(rows["data"]), "sums": list(np.sum([row[1:4] for row in rows["data"]], axis=0))}
            for rank, rows in launches[0].items()
        }  # fmt: skip
    ours = gpu.launch_statistics()
    for position, rank in enumerate(gpu.ranks):
        theirs = launches[str(position)]
        mine = ours[ours["rank"] == rank]
        if folder.name in {"amd", "triton"}:
            assert theirs["count"] == 0
            assert len(mine) == kernels_of(gpu, rank)
            continue
        # HolisticTraceAnalysis looks at four kinds of calls only
        assert len(mine) >= theirs["count"]
        if len(mine) == theirs["count"]:
            allowed = rounding(folder, len(mine))
            sums = [mine[column].sum() for column in ("cpu_us", "gpu_us", "delay_us")]
            assert sums == pytest.approx(theirs["sums"], abs=allowed)


def test_queue_length(gpu, expected):
    ours = gpu.queue_length().set_index(["rank", "stream"])
    saved = expected["queue"][0]
    ranks = list(gpu.ranks)
    for (position, stream), row in zip(saved["index"], saved["data"], strict=True):
        found = ours.loc[(ranks[int(position)], int(stream))]
        if found["count"] != row[0]:  # launches that HolisticTraceAnalysis leaves out
            assert found["count"] > row[0]
            continue
        # equal times may be in another order
        assert found["mean"] == pytest.approx(row[1], rel=0.01)
        assert found["max"] == pytest.approx(row[7], abs=1)


def test_memory_bandwidth(folder, gpu, expected):
    if folder.name != "alexnet":
        pytest.skip("HolisticTraceAnalysis adds up copies that run at the same time")
    ours = gpu.memory_bandwidth().groupby("direction")
    saved = expected["membw"][0]
    for (_, direction), row in zip(saved["index"], saved["data"], strict=True):
        assert int(ours["count"].sum()[direction]) == row[0]
        # the trace's own figures come from nanoseconds that it does not hold
        assert float(ours["max_gbps"].max()[direction]) == pytest.approx(row[7], rel=0.15)
