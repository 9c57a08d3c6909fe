"""Frames as Dask DataFrames hold the rows of the pandas frames."""

import dask
import pandas as pd
import pytest

from sm_profiler.analysis import PandasFrame
from sm_profiler.compact import compact
from sm_profiler.source import open_source
from sm_profiler.storage import LocalStorage
from tests.support.jobs import make_job


@pytest.mark.parametrize("parquet", [False, True])
def test_to_dask_has_the_rows_of_the_frames(tmp_path, parquet):
    job = tmp_path / "job"
    make_job(job, "--minutes 3 --nodes 2 --start-epoch 1700002710")
    if parquet:
        compact(open_source(job, cache=False), LocalStorage(tmp_path / "out"), job="j")
    frame = PandasFrame(str(tmp_path / "out") if parquet else str(job))
    with dask.config.set(scheduler="synchronous"):
        for kind, whole in (
            ("system", frame.get_all_system_metrics()),
            ("framework", frame.get_all_framework_metrics()),
        ):
            lazy = frame.to_dask(kind)
            assert lazy.npartitions > 1
            found = lazy.compute().reset_index(drop=True)
            pd.testing.assert_frame_equal(
                found, whole.reset_index(drop=True), check_dtype=False, check_categorical=False
            )
    with pytest.raises(ValueError, match="neither"):
        frame.to_dask("both")
