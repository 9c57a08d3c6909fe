"""Arguments that are mistaken in a usual way: taken as meant, or refused in one line."""

import importlib
import logging

import pytest

import sm_profiler
from sm_profiler.analysis.pandas_frame import PandasFrame
from sm_profiler.analysis.statistics import PandasFrameAnalysis
from sm_profiler.debugger import FrameworkProfile, ProfilerConfig
from tests.support.jobs import make_job


def test_one_name_is_a_list_of_it(tmp_path, caplog):
    frame = PandasFrame(str(make_job(tmp_path)))
    for of_all in (frame.get_all_framework_metrics, frame.get_all_system_metrics):
        column = "framework_metric" if "framework" in of_all.__name__ else "system_metric"
        name = str(of_all()[column].iloc[0])
        assert of_all(name).equals(of_all([name]))
    assert not caplog.records


def test_a_wrong_argument_is_the_only_one_in_the_message(tmp_path, caplog):
    frame = PandasFrame(str(make_job(tmp_path)))
    caplog.set_level(logging.WARNING)
    analysis = PandasFrameAnalysis(frame.get_all_system_metrics(), frame.get_all_framework_metrics())
    assert analysis.get_utilization_stats(by="node") is None
    assert "by must be a StatsBy" in caplog.text
    assert "resource" not in caplog.text


def test_an_internal_module_of_the_profiler_is_not_about_tensors():
    sm_profiler.install_as_smdebug()
    with pytest.raises(ModuleNotFoundError, match="no counterpart; it is internal"):
        importlib.import_module("smdebug.profiler.profiler_config_parser")


def test_a_framework_profile_is_no_path():
    with pytest.raises(AssertionError, match="framework_profile_params="):
        ProfilerConfig(FrameworkProfile())
