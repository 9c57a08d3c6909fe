"""What sections say where a rule had nothing to judge, and how numbers and nouns agree."""

import pytest
from report_helpers import facts_of

from sm_profiler.report.sections import build_sections


def sections_of(rules):
    return {section.key: section for section in build_sections(facts_of(), rules, {})}


def result(points=0, **details):
    return {"RuleTriggered": 0, "Violations": 0, "Datapoints": points, "Details": details, "RuleParameters": ""}


@pytest.mark.parametrize(
    ("key", "rule"),
    [("cpu", "CPUBottleneck"), ("io", "IOBottleneck"), ("gpu", "LowGPUUtilization"), ("batch", "BatchSize"), ("memory", "GPUMemoryIncrease")],
)  # fmt: skip
def test_without_gpus_the_sections_of_gpus_say_why(key, rule):
    section = sections_of({rule: result(479, not_evaluated="no GPU metrics here")})[key]
    assert section.missing == "Not judged: no GPU metrics here."
    assert not section.sentences


@pytest.mark.parametrize(
    ("processes", "cores", "words"),
    [(1, 1, "1 data loading process ran on 1 CPU core."), (3, 8, "3 data loading processes ran on 8 CPU cores.")],
)
def test_one_process_is_no_processes(processes, cores, words):
    section = sections_of({"Dataloader": result(9, cores=cores, dataloaders=processes)})["loader"]
    assert words in section.sentences
