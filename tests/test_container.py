"""The container's layout: paths below SM_PROFILER_ROOT, and what resourceconfig.json describes."""

import json
import subprocess
from pathlib import Path

import pytest

from sm_profiler import container
from sm_profiler.container import Resources, read_resources, relocated_text, rooted


def test_paths_are_moved_below_the_root(tmp_path):
    environment = {"SM_PROFILER_ROOT": str(tmp_path)}
    assert rooted("/opt/ml/output/profiler", environment) == tmp_path / "output" / "profiler"
    assert rooted("/opt/ml", environment) == tmp_path
    assert str(rooted("/opt/mlx/a", environment)) == "/opt/mlx/a"
    assert str(rooted("/opt/ml/a", {})) == "/opt/ml/a"


def test_texts_are_moved_below_a_root():
    assert relocated_text("python /opt/ml/code/a.py /opt/mlx /opt/ml", "/r") == "python /r/code/a.py /opt/mlx /r"


def test_reads_resourceconfig(tmp_path):
    environment = {"SM_PROFILER_ROOT": str(tmp_path)}
    assert read_resources(environment) == Resources("algo-1", (), None, "")
    assert read_resources(environment).is_first_node
    path = rooted(container.RESOURCE_CONFIG, environment)
    path.parent.mkdir(parents=True)
    fields = {
        "current_host": "algo-10",
        "hosts": ["algo-10", "algo-9"],
        "current_instance_type": "ml.g5.xlarge",
        "network_interface_name": "eth0",
    }
    path.write_text(json.dumps(fields))
    found = read_resources(environment)
    assert found == Resources("algo-10", ("algo-10", "algo-9"), "ml.g5.xlarge", "eth0")
    assert not found.is_first_node


@pytest.mark.parametrize(
    "text", ["not json", "[]", "{}", '{"current_host": 5}', "[" * 100_000, '{"current_host": "algo-2"', "\udcff"]
)
def test_a_damaged_resourceconfig_leaves_the_defaults(tmp_path, text):
    environment = {"SM_PROFILER_ROOT": str(tmp_path)}
    path = rooted(container.RESOURCE_CONFIG, environment)
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_resources(environment) == Resources()


def test_damaged_fields_leave_their_defaults(tmp_path):
    environment = {"SM_PROFILER_ROOT": str(tmp_path)}
    path = rooted(container.RESOURCE_CONFIG, environment)
    path.parent.mkdir(parents=True)
    fields = {"current_host": "algo-2", "hosts": 3, "current_instance_type": None, "network_interface_name": []}
    path.write_text(json.dumps(fields))
    assert read_resources(environment) == Resources("algo-2")


def test_no_other_module_spells_the_layout():
    """Each path of the container is written once."""
    root = Path(__file__).parents[1]
    found = subprocess.run(
        ["git", "grep", "-lE", '"/opt/ml', "--", "sm_profiler/*.py"],
        cwd=root, capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    others = {
        "sm_profiler/container.py",
        "sm_profiler/settings.py",
        "sm_profiler/rules/trial.py",
    }  # defaults; the old API
    assert set(found) <= others


@pytest.mark.parametrize(
    ("variables", "node", "is_first"),
    [
        ({"SLURM_NODEID": "1", "SLURM_NNODES": "4"}, "algo-2", False),
        ({"SLURM_NODEID": "0", "SLURM_NNODES": "4"}, "algo-1", True),
        ({"PET_NODE_RANK": "3", "PET_NNODES": "2:4", "GROUP_RANK": "0"}, "algo-4", False),
        ({"GROUP_RANK": "1"}, "algo-2", False),
        ({"SM_PROFILER_NODE_RANK": "2", "SM_PROFILER_NODES": "3", "SLURM_NODEID": "0"}, "algo-3", False),
        ({"SLURM_NODEID": "x"}, "algo-1", True),
        ({"SLURM_NODEID": "-1", "SLURM_NNODES": "9" * 30}, "algo-1", True),
    ],
)
def test_nodes_outside_of_the_service_are_numbered_by_their_launcher(tmp_path, variables, node, is_first):
    found = read_resources({"SM_PROFILER_ROOT": str(tmp_path), **variables})
    assert (found.node, found.is_first_node) == (node, is_first)
