"""Answer questions about folders with smdebug 1.0.34, in its own environment.

Reads {folder: [question, …]} as JSON from standard input (no question: all of QUESTIONS, below) and writes
{folder: {question: answer}} as JSON to standard output.
"""

import contextlib
import io
import json
import logging
import sys
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

with contextlib.redirect_stdout(io.StringIO()):
    from smdebug.profiler.analysis.utils.pandas_data_analysis import PandasFrameAnalysis, Resource, StatsBy
    from smdebug.profiler.analysis.utils.profiler_data_to_pandas import PandasFrame
    from smdebug.profiler.analysis.utils.pytorch_dataloader_analysis import PT_dataloader_analysis

MIDDLE = (1_700_000_040_000_000, 1_700_000_075_500_000)  # a time range in the middle of a job of make_job.py


def table(frame):
    return json.loads(frame.to_json(orient="split", index=False, double_precision=15)) if frame is not None else None


def cells(value):
    """Convert a dictionary's values to plain JSON, a series to its first element."""
    if hasattr(value, "iloc"):
        value = value.iloc[0]
    return value.item() if hasattr(value, "item") else value


def analysis(pf):
    return PandasFrameAnalysis(pf.get_all_system_metrics(), pf.get_all_framework_metrics())


def steps_analysis(pf):
    names = ["Step:ModeKeys.TRAIN", "Step:ModeKeys.EVAL", "Step:ModeKeys.GLOBAL"]
    return PandasFrameAnalysis(pf.get_all_system_metrics(), pf.get_all_framework_metrics(names))


def times_of(pf):
    frame = pf.get_all_system_metrics(["cpu0"])
    return frame["timestamp"].tolist()[20:60]


def steps_of(pf):
    frame = pf.get_all_framework_metrics(["Step:ModeKeys.TRAIN"])
    return frame["start_time"].tolist()[3:12], frame["end_time"].tolist()[3:12]


def printed(call):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = call()
    return {"printed": out.getvalue(), "table": table(result.astype(str)) if result is not None else None}


QUESTIONS = {
    "system": lambda pf: table(pf.get_all_system_metrics()),
    "system-selected": lambda pf: table(pf.get_all_system_metrics(["cpu1", "gpu0"])),
    "framework": lambda pf: table(pf.get_all_framework_metrics()),
    "framework-selected": lambda pf: table(pf.get_all_framework_metrics(["Forward", "aten::conv2d"])),
    "dataloader": lambda pf: table(pf.get_all_dataloader_metrics()),
    "dataloader-selected": lambda pf: table(pf.get_all_dataloader_metrics([".*DataLoaderIter::GetNext"])),
    "by-time": lambda pf: [table(frame) for frame in pf.get_profiler_data_by_time(*MIDDLE)],
    "by-step": lambda pf: [table(frame) for frame in pf.get_profiler_data_by_step(2, 6)],
    "by-timesteps": lambda pf: pf.get_framework_metrics_by_timesteps(times_of(pf)),
    "by-begin-and-end": lambda pf: pf.get_framework_metrics_by_begin_and_end_timesteps(*steps_of(pf)),
    "job": lambda pf: {key: cells(value) for key, value in vars(steps_analysis(pf).get_job_statistics()).items()},
    "step-training": lambda pf: table(steps_analysis(pf).get_step_statistics(StatsBy.TRAINING_PHASE)),
    "step-process": lambda pf: table(steps_analysis(pf).get_step_statistics(StatsBy.PROCESS)),
    "step-framework": lambda pf: table(steps_analysis(pf).get_step_statistics(StatsBy.FRAMEWORK_METRICS)),
    "utilization": lambda pf: table(steps_analysis(pf).get_utilization_stats()),
    "utilization-cpu": lambda pf: table(steps_analysis(pf).get_utilization_stats(Resource.CPU)),
    "utilization-phase": lambda pf: table(steps_analysis(pf).get_utilization_stats(by=StatsBy.TRAINING_PHASE)),
    "device": lambda pf: table(steps_analysis(pf).get_device_usage_stats().rename(columns=str)),
    "device-ranges": lambda pf: table(
        steps_analysis(pf).get_device_usage_stats(Resource.GPU, [(0, 30), (30, 100)]).rename(columns=str)
    ),
    "intervals": lambda pf: table(steps_analysis(pf).get_training_phase_intervals()),
    "intervals-train": lambda pf: table(steps_analysis(pf).get_training_phase_intervals("Step:ModeKeys.TRAIN")),
    "loader-init": lambda pf: printed(PT_dataloader_analysis(pf).analyze_dataloaderIter_initialization),
    "loader-workers": lambda pf: printed(PT_dataloader_analysis(pf).analyze_dataloaderWorkers),
    "loader-getnext": lambda pf: printed(PT_dataloader_analysis(pf).analyze_dataloader_getnext),
    "loader-batchtime": lambda pf: printed(PT_dataloader_analysis(pf).analyze_batchtime),
}


def answers(folder, questions):
    found = {}
    with contextlib.redirect_stdout(io.StringIO()):
        pf = PandasFrame(
            folder, scan_interval=10**16
        )  # one chunk, so that a folder without system metrics takes no ages
        for question in questions or QUESTIONS:
            try:
                found[question] = QUESTIONS[question](pf)
            except Exception as error:  # one failing question leaves the others
                found[question] = {"failed": f"{type(error).__name__}: {error}"}
    return found


if __name__ == "__main__":
    json.dump({folder: answers(folder, questions) for folder, questions in json.load(sys.stdin).items()}, sys.stdout)
