"""Made-up jobs: rows, report.json and job.json."""

import json

from sm_profiler._version import __version__
from sm_profiler.fleet.model import FleetJob
from sm_profiler.fleet.rows import read_report, row_of, with_bill
from sm_profiler.report.prices import Prices

START_S = 1_790_000_000
HOUR = 3600.0


def finding(kind="BALANCED", seconds=None, *, share=0.0, of="loop", evidence=(), **other):
    gain, nothing = None, {"low": 0.0, "value": 0.0, "high": 0.0}
    if seconds is not None:
        saved = {"low": 0.8 * seconds, "value": seconds, "high": 1.1 * seconds}
        gain = {
            "seconds_per_step": nothing,
            "share_of_loop": nothing,
            "speedup": nothing,
            "usd": None,
            "seconds": saved,
        }
    return {
        "class": kind, "headline": f"{kind} leads.", "next_step": f"Repair {kind}.", "share_of_time": share, "share_of": of,
        "confidence": "high", "evidence": list(evidence), "where": [], "gain": gain, **other,
    }  # fmt: skip


def report_json(  # one argument a part
    name="job", verdict=None, also=(), *, duration=HOUR, step_ms=100.0, hosts=("i-1",), slow=None, **job
):
    """Return report.json of a job with one rank a host; `slow` is the place of the one that delays the others."""
    verdict = verdict or finding()
    if slow is not None:
        evidence = [
            {"metric": "time the other ranks wait for this one", "value": 0.2, "threshold": 0.05, "where": f"algo-{slow + 1}-0", "unit": "share"},
        ]  # fmt: skip
        verdict = finding("STRAGGLER", 0.2 * duration, share=0.2, evidence=evidence)
    start = job.pop("start", START_S)
    ranks = [
        {
            "name": f"algo-{place + 1}-0", "node": f"algo-{place + 1}", "host": host, "train_steps": int(duration * 1000 / step_ms),
            "eval_steps": 0, "loop_s": duration, "seconds": {"wait": 0.0, "evaluation": 0.0}, "gc_s": 0.0,
            "communication_s": 0.0, "attempts": 1, "interrupted_s": 0.0,
        }
        for place, host in enumerate(hosts)
    ]  # fmt: skip
    return {
        "schema_version": "1.0", "version": __version__, "generated": "", "source": "",
        "job": {
            "name": name, "start": start, "end": start + duration, "duration_s": duration, "running": False,
            "nodes": [f"algo-{place + 1}" for place in range(len(hosts))], "instance_type": "ml.g5.xlarge",
            "gpus": [{"node": "algo-1", "name": "gpu0", "mean": 50.0, "idle": 0.1, "memory": 50.0, "memory_max": 60.0}],
            "cpu_cores": {}, "initialization_s": None, "utilisation": {}, "loop": [start, start + duration], "steps_per_second": 1000 / step_ms, "profiler_overhead": 0.002,
            "ranks": ranks, "startup": [], **job,
        },
        "verdict": {**verdict, "also": list(also), "not_judged": []},
        "data_quality": {"sentence": "", "files": 0, "states": {}, "lost": 0, "rows": [], "more": 0, "collectors": []},
    }  # fmt: skip


def description(name="job", *, status="Completed", start=START_S, billable=3600, training=3600, **other):
    """Return what DescribeTrainingJob answers, as JSON."""
    return {
        "TrainingJobName": name, "TrainingJobArn": f"arn:aws:sagemaker:us-east-1:1:training-job/{name}",
        "TrainingJobStatus": status, "CreationTime": start - 300, "TrainingStartTime": start, "TrainingEndTime": start + training,
        "LastModifiedTime": start + training, "BillableTimeInSeconds": billable, "TrainingTimeInSeconds": training,
        "EnableManagedSpotTraining": billable < training,
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1},
        "AlgorithmSpecification": {"TrainingImage": "1.dkr.ecr/train:7"}, **other,
    }  # fmt: skip


def priced(report=None, described=None, *, prices=None, **place):
    """Return the row of a report and a description, with its bill."""
    found = read_report(json.dumps(report).encode()) if report else None
    row = row_of(found, described or {}, FleetJob("", judged="report" if report else "", **place))
    return with_bill(row, Prices.of(prices))
