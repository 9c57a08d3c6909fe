"""Heterogeneous clusters on the local endpoint."""

import json

SCRIPT = """
import json, os, pathlib
from sm_profiler.container import read_resources
found = json.loads(pathlib.Path(os.environ["SM_PROFILER_ROOT"], "input/config/resourceconfig.json").read_text())
print(json.dumps({"found": found, "type": read_resources().instance_type, "group": os.environ["SM_CURRENT_INSTANCE_GROUP"]}))
"""
GROUPS = [
    {"InstanceGroupName": "gpus", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1},
    {"InstanceGroupName": "loaders", "InstanceType": "ml.c5.18xlarge", "InstanceCount": 2},
]


def test_each_host_has_its_group(bench):
    job = bench.run(SCRIPT, ResourceConfig={"InstanceGroups": GROUPS, "VolumeSizeInGB": 1})
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    printed = [json.loads(line) for line in bench.lines(job["TrainingJobName"]) if line.startswith("{")]
    by_host = {one["found"]["current_host"]: one for one in printed}
    assert {host: (one["group"], one["type"]) for host, one in by_host.items()} == {
        "algo-1": ("gpus", "ml.p4d.24xlarge"),
        "algo-2": ("loaders", "ml.c5.18xlarge"),
        "algo-3": ("loaders", "ml.c5.18xlarge"),
    }
    groups = by_host["algo-3"]["found"]["instance_groups"]
    assert [group["hosts"] for group in groups] == [["algo-1"], ["algo-2", "algo-3"]]
    assert by_host["algo-2"]["found"]["hosts"] == ["algo-1", "algo-2", "algo-3"]
