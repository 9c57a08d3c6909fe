"""The names that users rely on: additions are deliberate, removals break them."""

from importlib import import_module

import pytest

CONTRACT = {
    "sm_profiler.debugger": """ProfilerConfig FrameworkProfile DetailedProfilingConfig DataloaderProfilingConfig
        PythonProfilingConfig HorovodProfilingConfig SMDataParallelProfilingConfig StepRange TimeRange PythonProfiler
        cProfileTimer Profiler ProfilerRule rule_configs get_rule_container_image_uri get_default_profiler_processing_job""",
    "sm_profiler.launch": "to_request to_shapes attach",
    "sm_profiler.hook": "Hook get_hook ModeKeys",
    "sm_profiler.analysis": """TrainingJob PandasFrame PandasFrameAnalysis PT_dataloader_analysis MergedTimeline cProfileAnalysis
        PyinstrumentAnalysis TimelineCharts StepTimelineChart StepHistogram MetricsHistogram Heatmap""",
    "sm_profiler.rules": """Rule RuleEvaluationConditionMet ProfilerReport CPUBottleneck IOBottleneck LowGPUUtilization
        GPUMemoryIncrease BatchSize LoadBalancing StepOutlier MaxInitializationTime Dataloader OverallSystemUsage
        OverallFrameworkMetrics""",
}


@pytest.mark.parametrize("module", sorted(CONTRACT))
def test_contract(module):
    names = CONTRACT[module].split()
    loaded = import_module(module)
    assert set(names) <= set(loaded.__all__)
    assert all(getattr(loaded, name) is not None for name in names)


def test_top_level_has_the_debugger_names():
    import sm_profiler

    debugger = import_module("sm_profiler.debugger")
    for name in CONTRACT["sm_profiler.debugger"].split():
        assert getattr(sm_profiler, name) is getattr(debugger, name)
        assert name in dir(sm_profiler)


def test_unknown_name_is_an_attribute_error():
    import sm_profiler

    with pytest.raises(AttributeError, match="nonsense"):
        _ = sm_profiler.nonsense
