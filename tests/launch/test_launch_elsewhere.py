"""The manifests for machines outside of SageMaker: their schema, their variables and their command lines."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import boto3
import jsonschema
import pytest
import yaml
from moto.server import ThreadedMotoServer

from sm_profiler.config import load_profile
from sm_profiler.container import expanded, read_resources
from sm_profiler.monitor.agent import TERM_SECONDS
from sm_profiler.settings import ACCOUNT, DELETE_UPLOADED, LOCAL_MAX, METRICS_ADDRESS, METRICS_PORT, USER, misspelt

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "examples/elsewhere"
GUARD = ROOT / "tests/data/local/network_guard.py"
PAGES = {"ec2": "ec2.sh", "eks": "pytorchjob.yaml", "slurm": "train.sbatch", "hyperpod": "hyperpod.sbatch"}
PRINTER = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
"""
STUBS = {
    "torchrun": PRINTER,
    "scontrol": '#!/bin/bash\n[ "$1 $2 $3" = "show hostnames node[1-2]" ] && printf "node1\\nnode2\\n"\n',
    "srun": '#!/bin/bash\nwhile [[ "$1" == --* ]]; do echo "$1" >> "$OPTIONS"; shift; done\nexec "$@"\n',
}
TEXT = {"type": "string", "minLength": 1}
FIELD = {
    "type": "object",
    "required": ["fieldRef"],
    "properties": {"fieldRef": {"type": "object", "required": ["fieldPath"], "properties": {"fieldPath": TEXT}}},
    "additionalProperties": False,
}
CONTAINER = {
    "type": "object",
    "required": ["name", "image", "env"],
    "properties": {
        "name": {"enum": ["pytorch", "node"]},  # the operators look for these names
        "image": TEXT,
        "command": {"type": "array", "items": TEXT, "minItems": 1},
        "args": {"type": "array", "items": TEXT},
        "ports": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "containerPort"],
                "properties": {"name": {"pattern": "^[a-z0-9-]{1,15}$"}, "containerPort": {"type": "integer"}},
                "additionalProperties": False,
            },
        },
        "resources": {
            "type": "object",
            "properties": {"limits": {"type": "object", "required": ["nvidia.com/gpu"]}},
            "additionalProperties": False,
        },
        "env": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": TEXT, "value": TEXT, "valueFrom": FIELD},
                "oneOf": [{"required": ["value"]}, {"required": ["valueFrom"]}],
                "additionalProperties": False,
            },
        },
        "volumeMounts": {"type": "array", "items": {"type": "object", "required": ["name", "mountPath"]}},
    },
    "additionalProperties": False,
}
POD = {  # the parts of Kubernetes' PodTemplateSpec that the manifests use, under its names
    "type": "object",
    "required": ["metadata", "spec"],
    "properties": {
        "metadata": {"type": "object", "required": ["labels"]},
        "spec": {
            "type": "object",
            "required": ["containers", "volumes", "terminationGracePeriodSeconds"],
            "properties": {
                "containers": {"type": "array", "items": CONTAINER},
                "restartPolicy": {"enum": ["Always", "OnFailure", "Never"]},
                "terminationGracePeriodSeconds": {"type": "integer", "minimum": TERM_SECONDS + 10},
                "serviceAccountName": TEXT,
                "volumes": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": TEXT,
                            "emptyDir": {
                                "type": "object",
                                "required": ["sizeLimit"],
                                "properties": {
                                    "sizeLimit": {"pattern": "^[0-9]+[MG]i$"},
                                    "medium": {"const": "Memory"},
                                },
                                "additionalProperties": False,
                            },
                            "downwardAPI": {"type": "object", "required": ["items"]},
                            "configMap": {
                                "type": "object",
                                "required": ["name", "optional"],
                                "properties": {"name": TEXT, "optional": {"const": True}},
                                "additionalProperties": False,
                            },
                        },
                        "additionalProperties": False,
                    },
                },
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
REPLICA = {
    "type": "object",
    "required": ["replicas", "template"],
    "properties": {
        "replicas": {"type": "integer", "minimum": 1},
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
        "template": POD,
    },
    "additionalProperties": False,
}
PYTORCH_JOB = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v1"},
        "kind": {"const": "PyTorchJob"},
        "metadata": {
            "type": "object",
            "required": ["generateName"],
            "properties": {"generateName": {"pattern": "^[a-z0-9-]{1,57}-$"}},
            "additionalProperties": False,
        },
        "spec": {
            "type": "object",
            "required": ["pytorchReplicaSpecs"],
            "properties": {
                "nprocPerNode": TEXT,
                "pytorchReplicaSpecs": {
                    "type": "object",
                    "properties": {"Master": REPLICA, "Worker": REPLICA},
                    "additionalProperties": False,
                },
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
POLICY = {  # the parts of MutatingAdmissionPolicy's spec that the manifest uses
    "type": "object",
    "required": ["matchConstraints", "mutations", "reinvocationPolicy"],
    "properties": {
        "failurePolicy": {"const": "Ignore"},
        "reinvocationPolicy": {"enum": ["Never", "IfNeeded"]},
        "matchConstraints": {
            "type": "object",
            "properties": {
                "resourceRules": {"const": [RULE]},
                "objectSelector": {"const": {
                    "matchExpressions": [{"key": "sm-profiler", "operator": "NotIn", "values": ["disabled"]}]
                }},
            },
            "additionalProperties": False,
        },
        "variables": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "expression"],
                "properties": {"name": {"pattern": "^[a-z]+$"}, "expression": TEXT},
                "additionalProperties": False,
            },
        },
        "mutations": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["patchType", "applyConfiguration"],
                "properties": {
                    "patchType": {"const": "ApplyConfiguration"},
                    "applyConfiguration": {"type": "object", "required": ["expression"]},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}  # fmt: skip
TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(TensorDataset(torch.ones(64, 4), torch.ones(64, 1)), 2):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""


def bytes_of(size):
    """Return the bytes of a size as Kubernetes writes it."""
    return int(size[:-2]) * {"Mi": 2**20, "Gi": 2**30}[size[-2:]]


def configuration():
    """Return the text of each file of the ConfigMap, by its path in a pod."""
    found = yaml.safe_load((MANIFESTS / "configmap.yaml").read_text())
    assert (found["kind"], found["metadata"]["name"]) == ("ConfigMap", "sm-profiler")
    return {f"/etc/sm-profiler/{name}": text for name, text in found["data"].items()}


def check_variables(environment, node):
    """Check that a process with these variables profiles, uploads, and has the number of its node."""
    named = environment["SM_PROFILER_CONFIG"]
    profile = load_profile(named if named.startswith("{") else configuration()[named])
    assert environment["SM_PROFILER_AUTO"] == "1"
    assert environment["TRAINING_JOB_NAME"]
    assert profile.hook_on
    assert not profile.problems
    assert profile.s3_output_path == "s3://YOUR-BUCKET/profiles"
    assert read_resources({**environment, "SM_PROFILER_ROOT": "/nonexistent"}).node == node


def check_command(arguments):
    """Check a command line of torchrun with its own parser."""
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(arguments)
    assert parsed.training_script == "train.py"
    return parsed


def run_with_stubs(tmp_path, manifest, **variables):
    stubs = tmp_path / "bin"
    stubs.mkdir(parents=True)
    for name, text in STUBS.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    environment = {"PATH": f"{stubs}:/usr/bin:/bin", "OPTIONS": str(tmp_path / "options"), **variables}
    ran = subprocess.run(["bash", MANIFESTS / manifest], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize(("page", "manifest"), PAGES.items())
def test_the_page_shows_the_manifest(page, manifest):
    assert (MANIFESTS / manifest).read_text() in (ROOT / f"docs/elsewhere/{page}.md").read_text()


@pytest.mark.parametrize("manifest", ["train.sbatch", "hyperpod.sbatch"])
def test_slurm_starts_torchrun_on_every_node(tmp_path, manifest):
    slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2", "SLURM_NODEID": "1"}
    arguments, environment = run_with_stubs(tmp_path, manifest, GPUS_PER_NODE="4", **slurm)
    parsed = check_command(arguments)
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.rdzv_endpoint) == ("2", "4", "node1:29500")
    assert environment["TRAINING_JOB_NAME"] == "train-77"  # the same after a requeue
    check_variables(environment, "algo-2")
    options = tmp_path / "options"
    assert (options.read_text().split() if options.exists() else []) == (
        ["--auto-resume=1"] if manifest == "hyperpod.sbatch" else []
    )


@pytest.mark.parametrize(
    ("own", "added"),
    [
        ({}, {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": "CONFIG", "SM_PROFILER_DELETE_UPLOADED": "1"}),
        ({"SM_PROFILER_AUTO": "0"}, {"SM_PROFILER_CONFIG": "CONFIG", "SM_PROFILER_DELETE_UPLOADED": "1"}),
        ({"SM_PROFILER_AUTO": "", "SM_PROFILER_CONFIG": "{}", "SM_PROFILER_DELETE_UPLOADED": "0"}, {}),
    ],
)
def test_the_task_prolog_profiles_each_job_that_does_not_opt_out(tmp_path, own, added):
    script, config = (MANIFESTS / "task_prolog.sh").read_text(), tmp_path / "sm-profiler.json"
    assert script in (ROOT / "docs/elsewhere/slurm.md").read_text()
    prolog = tmp_path / "prolog.sh"
    targets = tmp_path / "targets"
    prolog.write_text(
        script.replace("/shared/sm-profiler.json", str(config)).replace("/shared/sm-profiler-targets", str(targets))
    )

    def exported():
        command = ["bash", str(prolog)]
        found = subprocess.run(
            command, env={"PATH": os.environ["PATH"], **own}, capture_output=True, text=True, check=True
        )
        assert not found.stderr
        return dict(line.removeprefix("export ").split("=", 1) for line in found.stdout.splitlines())

    assert exported() == {}  # without a configuration each Python process would report that the hook is off
    config.write_text("{}")
    expected = {name: value.replace("CONFIG", str(config)) for name, value in added.items()}
    assert exported() == expected
    targets.mkdir()
    metrics = {"PORT": "9400", "ADDRESS": "0.0.0.0", "TARGETS": str(targets)}
    assert exported() == expected | {f"SM_PROFILER_METRICS_{name}": value for name, value in metrics.items()}
    assert not misspelt(exported())


def test_a_shared_folder_is_a_whole_configuration():
    text = (MANIFESTS / "shared-folder.json").read_text()
    assert text in (ROOT / "docs/elsewhere/slurm.md").read_text()
    profile = load_profile(text)
    assert profile.hook_on
    assert not profile.problems
    assert not profile.s3_output_path
    assert expanded(profile.local_path, job="slurm-7", user="anna") == "/shared/profiles/anna/slurm-7"


def test_the_pytorchjob_is_valid_and_its_containers_profile():
    manifest = yaml.safe_load((MANIFESTS / "pytorchjob.yaml").read_text())
    jsonschema.validate(manifest, PYTORCH_JOB)
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    pod = replicas["Master"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {one["name"]: one.get("value", "injected") for one in container["env"]}
    check_variables({**variables, "PET_NODE_RANK": "1", "PET_NNODES": "2"}, "algo-2")
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["command"][0] == "torchrun"
    check_command(container["command"][1:])


def variables_by_the_training_operator(job, node):
    """Return torchrun's variables as the operator of PyTorchJob sets them: most of them only in a job with a master."""
    replicas = job["pytorchReplicaSpecs"]
    found = {"PET_NNODES": str(sum(replica["replicas"] for replica in replicas.values()))}
    if "Master" in replicas:
        assert replicas["Master"]["replicas"] == 1  # the operator refuses others
        found |= {"PET_MASTER_ADDR": "job-master-0", "PET_MASTER_PORT": "23456", "PET_NODE_RANK": str(node)}
        found["PET_NPROC_PER_NODE"] = job["nprocPerNode"]
    return found


def variables_by_the_trainer(runtime, job, node):
    """Return torchrun's variables as Kubeflow Trainer sets them: for a runtime of torch, in the container named `node`."""
    assert "torch" in runtime["mlPolicy"]
    (replicated,) = runtime["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == "node"
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    return {
        "PET_NNODES": str(job["trainer"]["numNodes"]), "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29500",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob", "jobset"])
@pytest.mark.parametrize("node", [0, 1])
def test_the_nodes_of_a_job_in_kubernetes_find_each_other(name, node, monkeypatch):
    """With torchrun's own parser, which takes from PET_… what the command line leaves out."""
    *runtimes, job = [one["spec"] for one in yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text())]
    (container,) = pods()[name]["spec"]["containers"]
    if name == "pytorchjob":
        variables, command = variables_by_the_training_operator(job, node), container["command"]
    elif name == "trainjob":
        variables, command = variables_by_the_trainer(*runtimes, job, node), job["trainer"]["command"]
    else:
        (replicated,) = job["replicatedJobs"]
        assert replicated["template"]["spec"]["completionMode"] == "Indexed"
        assert replicated["template"]["spec"]["completions"] == replicated["template"]["spec"]["parallelism"] == 2
        known = {"SM_PROFILER_NODE_RANK": str(node), "TRAINING_JOB_NAME": "job"}
        arguments = [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text) for text in container["args"]]
        variables, command = {}, [*container["command"], *arguments]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert command[0] == "torchrun"
    parsed = check_command(command[1:])
    assert (parsed.nnodes, parsed.nproc_per_node, int(parsed.node_rank)) == ("2", "8", node)
    assert parsed.master_addr in {"job-master-0", "job-node-0-0.job"}


def pods():
    """Return the pod templates of the manifests for Kubernetes."""
    read = {
        name: list(yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))
        for name in ("pytorchjob", "trainjob", "jobset")
    }
    runtime, job = read["trainjob"]
    assert (runtime["kind"], job["kind"]) == ("ClusterTrainingRuntime", "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == 8
    (jobset,) = read["jobset"]
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (in_runtime,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (in_jobset,) = jobset["spec"]["replicatedJobs"]
    (pytorch,) = read["pytorchjob"]
    return {
        "pytorchjob": pytorch["spec"]["pytorchReplicaSpecs"]["Master"]["template"],
        "trainjob": in_runtime["template"]["spec"]["template"],
        "jobset": in_jobset["template"]["spec"]["template"],
    }


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob", "jobset"])
def test_pods_have_what_a_platform_team_asks_for(name):
    pod = pods()[name]
    jsonschema.validate(pod, POD)
    (container,) = pod["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert set(mounts.values()) == set(volumes)
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert volumes[mounts["/etc/podinfo"]]["downwardAPI"]["items"][0]["path"] == "labels"
    assert volumes[mounts["/etc/sm-profiler"]]["configMap"] == {"name": "sm-profiler", "optional": True}
    values = {one["name"]: one.get("value", "1") for one in container["env"]}
    assert 2 * LOCAL_MAX.read(values) <= bytes_of(volumes[mounts["/opt/ml/output"]]["emptyDir"]["sizeLimit"])
    assert values["SM_PROFILER_CONFIG"] in configuration()  # a file: text in a variable stays while a job runs
    values |= {"PET_NODE_RANK": "1", "PET_NNODES": "2"}
    check_variables(values, "algo-2")
    monitor = yaml.safe_load((MANIFESTS / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (port,) = container["ports"]
    assert (endpoint["port"], str(port["containerPort"])) == (port["name"], values["SM_PROFILER_METRICS_PORT"])
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    if name == "trainjob":  # its runtime is of all users
        job = list(yaml.safe_load_all((MANIFESTS / "trainjob.yaml").read_text()))[-1]
        assert {one["name"] for one in job["spec"]["trainer"]["env"]} == {USER.name, ACCOUNT.name}
    else:
        assert {"team", "owner"} <= pod["metadata"]["labels"].keys()


def test_a_policy_profiles_all_pods_of_a_namespace():
    policy, binding = yaml.safe_load_all((MANIFESTS / "profile_all.yaml").read_text())
    assert (policy["kind"], binding["kind"]) == ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
    assert {policy["apiVersion"], binding["apiVersion"]} == {"admissionregistration.k8s.io/v1"}
    jsonschema.validate(policy["spec"], POLICY)
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"sm-profiler": "enabled"}}},
    }
    written = {one["name"]: one["expression"] for one in policy["spec"]["variables"]}
    applied = policy["spec"]["mutations"][0]["applyConfiguration"]["expression"]
    for expression in (*written.values(), applied):  # each refers to what is above it only
        assert set(re.findall(r"variables\.(\w+)", expression)) <= set(written)
        assert all(expression.count(left) == expression.count(right) for left, right in ("()", "[]", "{}"))
    values = dict(re.findall(r'"name": "(\w+)",\s*"value": "([^"]+)"', written["env"]))
    assert values["SM_PROFILER_CONFIG"] in configuration()
    assert f'["{Path(values["SM_PROFILER_CONFIG"]).parent}"]' in applied
    assert not misspelt(values)
    local = json.loads(configuration()[values["SM_PROFILER_CONFIG"]])["ProfilingParameters"]["LocalPath"]
    assert "terminationGracePeriodSeconds: variables.grace" in applied
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", (MANIFESTS / "jobset.yaml").read_text())
    assert f"? {grace} :" in written["grace"]
    assert f'["{local}"]' in applied  # a volume with a limit, not the container's own layer
    assert DELETE_UPLOADED.read(values) is True
    assert 2 * LOCAL_MAX.read(values) <= bytes_of(re.search(r'sizeLimit: "(\w+)"', applied)[1])
    monitor = yaml.safe_load((MANIFESTS / "podmonitor.yaml").read_text())["spec"]
    assert json.dumps(monitor["selector"]["matchLabels"]) in applied
    assert f'name: "{monitor["podMetricsEndpoints"][0]["port"]}", containerPort: port' in applied
    assert str([METRICS_PORT.read(values)]) in written["port"]
    assert METRICS_ADDRESS.read(values) == "0.0.0.0"
    check_variables({**values, "TRAINING_JOB_NAME": "given", "PET_NODE_RANK": "1", "PET_NNODES": "2"}, "algo-2")
    assert "examples/elsewhere/profile_all.yaml" in (ROOT / "docs/elsewhere/rollout.md").read_text()


def test_each_run_in_kubernetes_has_a_name_of_its_own():
    """Two runs under one constant name would share a profile."""
    labels = {
        "pytorchjob": "training.kubeflow.org/job-name",
        "trainjob": "jobset.sigs.k8s.io/jobset-name",
        "jobset": "jobset.sigs.k8s.io/jobset-name",
    }
    for name, label in labels.items():
        text = (MANIFESTS / f"{name}.yaml").read_text()
        job = list(yaml.safe_load_all(text))[-1]
        assert job["metadata"] == {"generateName": "my-training-"}
        assert text.count("my-training") == 1
        (variable,) = [
            one for one in pods()[name]["spec"]["containers"][0]["env"] if one["name"] == "TRAINING_JOB_NAME"
        ]
        assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{label}']"


def test_a_machine_of_ones_own_starts_torchrun(tmp_path):
    arguments, environment = run_with_stubs(
        tmp_path, "ec2.sh", JOB="run-7", NODE="1", NODES="2", FIRST="10.0.0.1", GPUS="8"
    )
    parsed = check_command(arguments)
    assert (parsed.nnodes, parsed.node_rank, parsed.nproc_per_node, parsed.master_addr) == ("2", 1, "8", "10.0.0.1")
    check_variables(environment, "algo-2")
    assert environment["TRAINING_JOB_NAME"] == "run-7"
    with pytest.raises(AssertionError, match="JOB"):
        run_with_stubs(tmp_path / "again", "ec2.sh")


@pytest.mark.long
def test_two_nodes_profile_to_one_prefix_and_contact_no_other_host(tmp_path):
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
    s3 = boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", aws_access_key_id="k", aws_secret_access_key="s",  # none
        region_name="us-east-1",
    )  # fmt: skip
    s3.create_bucket(Bucket="your-bucket")
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard/sitecustomize.py").write_text(GUARD.read_text())
    (tmp_path / "train.py").write_text(TRAINING)
    script = (MANIFESTS / "ec2.sh").read_text().replace("YOUR-BUCKET", "your-bucket")
    script = script.replace("/tmp/sm-profiler", str(tmp_path / "profile"))
    (tmp_path / "ec2.sh").write_text(script)
    nodes = []
    try:
        for node in ("0", "1"):
            environment = {
                **keys, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path),
                "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}", "AWS_EC2_METADATA_DISABLED": "true",
                "NO_PROXY": "127.0.0.1", "JOB": "my-training", "NODE": node, "NODES": "2", "PORT": str(20000 + os.getpid() % 20000),
                "SM_PROFILER_ROOT": str(tmp_path / f"ml-{node}"), "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(tmp_path / "guard"), "NETWORK_GUARD_LOG": str(tmp_path / "guard.log"),
                "GLOO_SOCKET_IFNAME": "lo",
            }  # fmt: skip
            with (tmp_path / f"{node}.log").open("wb") as log:
                nodes.append(
                    subprocess.Popen(
                        ["bash", "ec2.sh"], env=environment, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT
                    )
                )
        codes = [node.wait(240) for node in nodes]
        logs = [(tmp_path / f"{node}.log").read_text() for node in "01"]
        assert codes == [0, 0], logs
        prefix = "profiles/my-training/profiler-output/"
        listed = s3.list_objects_v2(Bucket="your-bucket", Prefix=prefix)["Contents"]
        found = [item["Key"].removeprefix(prefix) for item in listed]
        for node in ("algo-1", "algo-2"):
            assert [key for key in found if key.endswith(f".{node}.json")], (found, logs)
            assert [key for key in found if f"-{node}_" in key], (found, logs)
        assert "system/training_job_end.ts" in found
        log = tmp_path / "guard.log"
        assert [line for line in (log.read_text().splitlines() if log.exists() else []) if "sm_profiler" in line] == []
    finally:
        for node in nodes:
            node.kill()
            node.wait()
        s3.close()
        server.stop()
