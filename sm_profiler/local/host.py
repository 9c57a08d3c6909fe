"""One host of a training job: the folder in place of /opt/ml, its files and its environment."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from sm_profiler import container
from sm_profiler.errors import ProfilerError
from sm_profiler.local.records import JsonDict
from sm_profiler.settings import ROOT

FOLDERS = (
    container.INPUT_CONFIG, container.INPUT_DATA, container.MODEL, container.CODE, container.OUTPUT_DATA,
    container.OUTPUT_INTERMEDIATE, container.CHECKPOINTS,
)  # fmt: skip
# Hyperparameters that the toolkit keeps for itself, and those by which the SDK requests a distribution.
SAGEMAKER_HYPERPARAMETERS = frozenset((
    "sagemaker_program", "sagemaker_submit_directory", "sagemaker_enable_cloudwatch_metrics", "sagemaker_region",
    "sagemaker_container_log_level", "sagemaker_job_name", "sagemaker_s3_output", "default_user_module_name",
    "_tuning_objective_metric",
))  # fmt: skip
DISTRIBUTIONS = tuple(
    f"sagemaker_{name}_enabled"
    for name in (
        "mpi", "parameter_server", "distributed_dataparallel", "pytorch_ddp", "torch_distributed",
        "pytorch_xla_multi_worker", "multi_worker_mirrored_strategy",
    )
)  # fmt: skip
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
MAX_HOSTS = 8  # of a job; each is a process on this machine
# Inherited from the endpoint's environment: variables that make this machine's GPUs and libraries usable.
MACHINE_VARIABLES = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TZ", "LANG")


def decode(value: str) -> Any:
    """Decode a hyperparameter: SDKs send JSON, other clients plain text."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


@attrs.frozen
class Cluster:
    """A group of equal instances, as in resourceconfig.json; a job has one, or the groups of a heterogeneous cluster."""

    instance_group_name: str
    instance_type: str
    hosts: tuple[str, ...]


def clusters_of(resources: JsonDict, names: Sequence[str]) -> tuple[Cluster, ...]:
    """Return the groups of a ResourceConfig, with the names of their hosts."""
    groups = resources.get("InstanceGroups")
    if not groups:
        return (Cluster("homogeneousCluster", resources.get("InstanceType", "local"), tuple(names)),)
    found, begin = [], 0
    for group in groups:
        end = begin + group["InstanceCount"]
        found.append(Cluster(group["InstanceGroupName"], group["InstanceType"], tuple(names[begin:end])))
        begin = end
    return tuple(found)


@attrs.frozen
class Host:
    """One machine of a job, represented by a folder.

    Attributes:
        name: algo-1 …
        clusters: the job's groups of instances, all its hosts in order.
        folder: all files of this host; `ml` in it is the counterpart of /opt/ml.
        tmp: its TMPDIR, a folder with a short path.
        port: a free port on 127.0.0.1, the rendezvous of a distributed job.
    """

    name: str
    clusters: tuple[Cluster, ...]
    folder: Path
    tmp: Path
    port: int

    @property
    def hosts(self) -> tuple[str, ...]:
        """All names of the job, in order."""
        return tuple(name for cluster in self.clusters for name in cluster.hosts)

    @property
    def cluster(self) -> Cluster:
        return next(cluster for cluster in self.clusters if self.name in cluster.hosts)

    @property
    def instance_type(self) -> str:
        return self.cluster.instance_type

    @property
    def ml(self) -> Path:
        """Counterpart of /opt/ml."""
        return self.folder / "ml"

    @property
    def rank(self) -> int:
        return self.hosts.index(self.name)

    def map(self, text: str) -> str:
        """Return a text with /opt/ml replaced by this host's folder."""
        return container.relocated_text(text, self.ml)

    def path(self, path: str) -> Path:
        """Return this host's counterpart of a path in the container."""
        return container.relocated(path, self.ml)

    def resource_config(self) -> JsonDict:
        return {
            "current_host": self.name,
            "current_instance_type": self.instance_type,
            "current_group_name": self.cluster.instance_group_name,
            "hosts": list(self.hosts),
            "instance_groups": [attrs.asdict(cluster) for cluster in self.clusters],
            "network_interface_name": "lo",
        }

    def prepare(self, request: JsonDict, profiler_config: JsonDict | None) -> None:
        """Create the folders and write the configuration files."""
        for name in FOLDERS:
            self.path(name).mkdir(parents=True, exist_ok=True)
        (self.folder / "home").mkdir(exist_ok=True)
        hyperparameters = dict(request.get("HyperParameters", {}))
        if str(decode(hyperparameters.get(SUBMIT_DIRECTORY, ""))).startswith(container.INPUT_DATA):
            # the code of a job without a network is in a channel
            hyperparameters[SUBMIT_DIRECTORY] = self.map(hyperparameters[SUBMIT_DIRECTORY])
        self.write_config("hyperparameters", hyperparameters)
        self.write_config("resourceconfig", self.resource_config())
        self.write_config("inputdataconfig", input_data_config(request))
        if profiler_config is not None:
            self.write_config("profilerconfig", profiler_config)

    def write_config(self, name: str, content: Any) -> None:
        """Write a file of input/config atomically: a running hook may read it at any moment."""
        path = self.path(container.INPUT_CONFIG) / f"{name}.json"
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(content), "utf-8")
        temporary.replace(path)


def input_data_config(request: JsonDict) -> JsonDict:
    return {
        channel["ChannelName"]: {
            "TrainingInputMode": channel.get("InputMode") or request["AlgorithmSpecification"]["TrainingInputMode"],
            "S3DistributionType": channel["DataSource"]
            .get("S3DataSource", {})
            .get("S3DataDistributionType", "FullyReplicated"),
            "RecordWrapperType": channel.get("RecordWrapperType", "None"),
            **({"ContentType": channel["ContentType"]} if "ContentType" in channel else {}),
        }
        for channel in request.get("InputDataConfig", ())
    }


def machine_environment() -> dict[str, str]:
    """Return the variables that make this machine's GPUs and libraries usable."""
    return {name: os.environ[name] for name in MACHINE_VARIABLES if name in os.environ}


def base_environment(host: Host, python: Path, client: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of every process of a job; the endpoint's own are not inherited."""
    return {
        "LANG": "C.UTF-8",
        **machine_environment(),
        **client,
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "VIRTUAL_ENV": str(python.parents[1]),
        "HOME": str(host.folder / "home"),
        "TMPDIR": str(host.tmp),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(host.path(container.CODE)),
        ROOT.name: str(host.ml),
    }


def service_environment(host: Host, request: JsonDict, arn: str) -> dict[str, str]:
    """Return the variables that the service sets, however the script is started."""
    return {
        container.JOB_NAME_VARIABLE: request["TrainingJobName"],
        "TRAINING_JOB_ARN": arn,
        container.TOOLKIT_JOB_NAME_VARIABLE: request["TrainingJobName"],
        "CURRENT_HOST": host.name,
        "SM_HOST_COUNT": str(len(host.hosts)),
        "SM_CURRENT_HOST_RANK": str(host.rank),
        "SM_MASTER_ADDR": "127.0.0.1",
        "SM_MASTER_PORT": str(host.port),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(host.port),
    }


def toolkit_environment(host: Host, request: JsonDict, gpus: int) -> dict[str, str]:
    """Return the variables that AWS's training toolkit sets, in the notation it uses."""
    raw = {name: decode(value) for name, value in request.get("HyperParameters", {}).items()}
    user = user_hyperparameters(request.get("HyperParameters", {}))
    framework = {
        name: value for name, value in raw.items() if name not in user and name not in SAGEMAKER_HYPERPARAMETERS
    }
    channels = {
        channel["ChannelName"]: str(host.path(container.INPUT_DATA) / channel["ChannelName"])
        for channel in request.get("InputDataConfig", ())
    }
    resources, program = host.resource_config(), str(raw.get("sagemaker_program", ""))
    groups = resources["instance_groups"]
    distributed = [resources["current_group_name"]] if any(framework.get(name) for name in DISTRIBUTIONS) else []
    found: dict[str, Any] = {
        "current_host": host.name,
        "current_instance_group": resources["current_group_name"],
        "current_instance_group_hosts": list(host.cluster.hosts),
        "current_instance_type": host.instance_type,
        "distribution_instance_groups": raw.get("sagemaker_distribution_instance_groups", distributed),
        "framework_module": None,
        "hosts": list(host.hosts),
        "input_config_dir": str(host.path(container.INPUT_CONFIG)),
        "input_data_config": input_data_config(request),
        "input_dir": str(host.path(container.INPUT)),
        "instance_groups": [group["instance_group_name"] for group in groups],
        "instance_groups_dict": {group["instance_group_name"]: group for group in groups},
        "is_hetero": len(groups) > 1,
        "log_level": raw.get("sagemaker_container_log_level", 20),
        "model_dir": str(host.path(container.MODEL)),
        "module_dir": str(raw.get("sagemaker_submit_directory", host.path(container.CODE))),
        "module_name": program.removesuffix(".py"),
        "network_interface_name": resources["network_interface_name"],
        "num_cpus": os.cpu_count() or 1,
        "num_gpus": gpus,
        "num_neurons": 0,
        "output_data_dir": str(host.path(container.OUTPUT_DATA)),
        "output_dir": str(host.path(container.OUTPUT)),
        "output_intermediate_dir": str(host.path(container.OUTPUT_INTERMEDIATE)),
        "resource_config": resources,
        "user_entry_point": program,
    }
    whole = {
        **found,
        "additional_framework_parameters": framework,
        "channel_input_dirs": channels,
        "distribution_hosts": list(host.hosts) if found["distribution_instance_groups"] else [],
        "hyperparameters": user,
        "is_master": host.rank == 0,
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": request["TrainingJobName"],
        "master_hostname": host.hosts[0],
        "topology": [],
    }
    found |= {f"channel_{name}": path for name, path in channels.items()}
    found |= {f"hp_{name}": value for name, value in user.items()}
    found |= {
        "channels": sorted(channels),
        "framework_params": framework,
        "hps": user,
        "training_env": whole,
        "user_args": arguments_of(user),
    }
    return {f"SM_{name.upper()}": as_variable(value) for name, value in found.items()}


def as_variable(value: Any) -> str:
    """Return a value as the toolkit writes it into a variable: text as it is, everything else as compact JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def as_text(value: Any) -> str:
    """Return a hyperparameter as one argument: text unquoted, mappings as a=1,b=2, null as "", others as Python prints them."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={part}" for key, part in sorted(value.items()))
    return "" if value is None else str(value)


def arguments_of(user: Mapping[str, Any]) -> list[str]:
    """Return hyperparameters as arguments `--name value`, sorted by name; one-letter names get one dash."""
    words: list[str] = []
    for name, value in sorted(user.items()):
        words += [f"--{name}" if len(name) > 1 else f"-{name}", as_text(value)]
    return words


def user_hyperparameters(hyperparameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the user's own hyperparameters, without those of the SDK, the toolkit and a tuning job."""
    return {
        name: decode(value)
        for name, value in hyperparameters.items()
        if not name.startswith("sagemaker_") and name not in SAGEMAKER_HYPERPARAMETERS
    }


def host_names(count: int) -> Sequence[str]:
    """Return the names of `count` hosts: algo-1, algo-2 and so on."""
    if count > MAX_HOSTS:
        raise ProfilerError(f"{count} instances requested; the local endpoint runs at most {MAX_HOSTS}")
    return [f"algo-{number + 1}" for number in range(count)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
