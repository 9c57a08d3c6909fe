"""Stages of tf.data pipelines as a DataFrame."""

import json

from sm_profiler.analysis import TF_dataloader_analysis
from sm_profiler.formats.event_names import DATA_STAGES
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter

START_US = 1_700_000_000_000_000
SLOW = {"stage": "map(decode)", "us": 3700.0, "batch_us": 118_400.0, "parallelism": 1.0, "line": 12}
FAST = {"stage": "batch", "us": 40.0, "batch_us": 40.0, "parallelism": 1.0}


def test_stages_of_the_longest_record(tmp_path, capsys):
    writer = TraceWriter(tmp_path, "0-algo-1")
    records = [{"batches": 300, "stages": [SLOW, FAST]}, {"batches": 2, "stages": [FAST]}, {"batches": "x"}]
    events = [
        TraceEvent("DataLoaderIter", "tf.data::GetNext", START_US + 1000 * n, 500, '{"num_workers": 1, "worker_id": -1}')
        for n in range(20)
    ]  # fmt: skip
    events += [TraceEvent(DATA_STAGES, "tf.data", START_US + n, 0, json.dumps(one)) for n, one in enumerate(records)]
    writer.write(events)
    writer.close()
    analysis = TF_dataloader_analysis(str(tmp_path))
    stages = analysis.analyze_stages()
    assert stages["stage"].tolist() == ["map(decode)", "batch"]
    assert stages["ms_per_element"].tolist() == [3.7, 0.04]
    assert stages["ms_per_batch"].tolist() == [118.4, 0.04]
    assert stages["process"].tolist() == ["algo-1-0"] * 2
    assert analysis.analyze_dataloader_getnext() is None
    assert "GetNext calls made during the training 20" in capsys.readouterr().out
