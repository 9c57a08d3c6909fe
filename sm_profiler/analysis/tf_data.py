"""`TF_dataloader_analysis`: time that tf.data's pipelines take."""

from __future__ import annotations

import json

import pandas as pd

from sm_profiler.analysis.dataloader import PT_dataloader_analysis
from sm_profiler.analysis.pandas_frame import PandasFrame
from sm_profiler.analysis.readers import ProfileLocation
from sm_profiler.formats import event_names

_COLUMNS = ["process", "stage", "ms_per_element", "ms_per_batch", "parallelism", "file", "line", "function"]


class TF_dataloader_analysis(PT_dataloader_analysis):  # like its model
    """Print statistics of tf.data pipelines: the wait for each batch, and the time of each stage.

    The methods for batches are those of `PT_dataloader_analysis`; tf.data has threads instead of worker processes, so
    there are no events of workers.

    Attributes:
        dataIter_metric: frame of the batches in the dataloader window.
    """

    def __init__(self, pandas_frame: PandasFrame | ProfileLocation) -> None:
        """Read the events of pipelines.

        Args:
            pandas_frame: a PandasFrame, or the location of a profile.

        Raises:
            SourceError: the profile does not exist or cannot be reached.
        """
        super().__init__(pandas_frame)
        self.dataIter_metric = self.pd_data_frame.get_all_dataloader_metrics([".*::GetNext"])

    def analyze_stages(self) -> pd.DataFrame:
        """Return the stages of each process's pipeline, the slowest first, as TensorFlow measured them.

        Returns:
            One row a stage: process, stage, ms_per_element, ms_per_batch, parallelism, and file, line and function of
            the user's code, as far as they are known. Empty if TensorFlow's autotuning was off.
        """
        events = self.pd_data_frame.framework_metrics_reader.columns()
        found = events[events.phase.mask(event_names.DATA_STAGES)]
        latest: dict[str, tuple[int, list[dict[str, object]]]] = {}
        for process, text in zip(found.node.decode(), found.args.decode(), strict=True):
            try:
                about = json.loads(text)
                batches, stages = int(about["batches"]), [dict(one) for one in about["stages"]]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if batches >= latest.get(process, (0, []))[0]:
                latest[process] = batches, stages
        rows = [
            {
                "process": process,
                "stage": one.get("stage"),
                "ms_per_element": _milliseconds(one.get("us")),
                "ms_per_batch": _milliseconds(one.get("batch_us")),
                **{name: one.get(name) for name in _COLUMNS[4:]},
            }
            for process, (_, stages) in sorted(latest.items())
            for one in stages
        ]
        return pd.DataFrame(rows, columns=_COLUMNS)


def _milliseconds(microseconds: object) -> float:
    return float(microseconds) / 1e3 if isinstance(microseconds, int | float) else float("nan")
