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
from sm_profiler.local.records import JsonDict

FOLDERS = (
    container.INPUT_CONFIG,
    container.INPUT_DATA,
    container.MODEL,
    container.CODE,
    container.OUTPUT_DATA,
    container.OUTPUT_INTERMEDIATE,
    container.CHECKPOINTS,
)
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
class Host:
    """One machine of a job, represented by a folder.

    Attributes:
        name: algo-1 …
        hosts: all names of the job, in order.
        folder: all files of this host; `ml` in it is the counterpart of /opt/ml.
        instance_type: as requested.
        tmp: its TMPDIR, a folder with a short path.
        port: a free port on 127.0.0.1, the rendezvous of a distributed job.
    """

    name: str
    hosts: tuple[str, ...]
    folder: Path
    instance_type: str
    tmp: Path
    port: int

    @property
    def ml(self) -> Path:
        """Counterpart of /opt/ml."""
        return self.folder / "ml"

    @property
    def rank(self) -> int:
        """Number of this host, from 0."""
        return self.hosts.index(self.name)

    def map(self, text: str) -> str:
        """Return a text with /opt/ml replaced by this host's folder."""
        return container.relocated_text(text, self.ml)

    def path(self, path: str) -> Path:
        """Return this host's counterpart of a path in the container."""
        return container.relocated(path, self.ml)

    def resource_config(self) -> JsonDict:
        """Return the content of resourceconfig.json."""
        group = {
            "instance_group_name": "homogeneousCluster",
            "instance_type": self.instance_type,
            "hosts": list(self.hosts),
        }
        return {
            "current_host": self.name,
            "current_instance_type": self.instance_type,
            "current_group_name": "homogeneousCluster",
            "hosts": list(self.hosts),
            "instance_groups": [group],
            "network_interface_name": "lo",
        }

    def prepare(self, request: JsonDict, profiler_config: JsonDict | None) -> None:
        """Create the folders and write the configuration files."""
        for name in FOLDERS:
            self.path(name).mkdir(parents=True, exist_ok=True)
        (self.folder / "home").mkdir(exist_ok=True)
        self.write_config("hyperparameters", request.get("HyperParameters", {}))
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
    """Return the content of inputdataconfig.json."""
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
    """Return the variables of every process of a job; the endpoint's own are not inherited.

    Args:
        host: the machine.
        python: the job's python.
        client: endpoint address, region and credentials.
    """
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
        container.ROOT_VARIABLE: str(host.ml),
    }


def sagemaker_environment(host: Host, request: JsonDict, arn: str, gpus: int) -> dict[str, str]:
    """Return the variables that the service and its training toolkit set."""
    raw = {name: decode(value) for name, value in request.get("HyperParameters", {}).items()}
    framework = {name: value for name, value in raw.items() if name.startswith("sagemaker_")}
    user = {name: value for name, value in raw.items() if not name.startswith("sagemaker_")}
    channels = [channel["ChannelName"] for channel in request.get("InputDataConfig", ())]
    program = str(framework.get("sagemaker_program", ""))
    paths = {
        "SM_MODEL_DIR": container.MODEL,
        "SM_MODULE_DIR": container.CODE,
        "SM_INPUT_DIR": container.INPUT,
        "SM_INPUT_CONFIG_DIR": container.INPUT_CONFIG,
        "SM_OUTPUT_DIR": container.OUTPUT,
        "SM_OUTPUT_DATA_DIR": container.OUTPUT_DATA,
        "SM_OUTPUT_INTERMEDIATE_DIR": container.OUTPUT_INTERMEDIATE,
    }
    found = {name: str(host.path(path)) for name, path in paths.items()}
    found |= {f"SM_CHANNEL_{name.upper()}": str(host.path(container.INPUT_DATA) / name) for name in channels}
    found |= {f"SM_HP_{name.upper()}": as_text(value) for name, value in user.items()}
    found |= {
        container.JOB_NAME_VARIABLE: request["TrainingJobName"],
        "TRAINING_JOB_ARN": arn,
        container.TOOLKIT_JOB_NAME_VARIABLE: request["TrainingJobName"],
        "SM_HOSTS": json.dumps(host.hosts),
        "SM_CURRENT_HOST": host.name,
        "SM_HOST_COUNT": str(len(host.hosts)),
        "SM_CURRENT_HOST_RANK": str(host.rank),
        "SM_MASTER_ADDR": "127.0.0.1",
        "SM_MASTER_PORT": str(host.port),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(host.port),
        "SM_NETWORK_INTERFACE_NAME": "lo",
        "SM_CURRENT_INSTANCE_TYPE": host.instance_type,
        "SM_CURRENT_INSTANCE_GROUP": "homogeneousCluster",
        "SM_NUM_CPUS": str(os.cpu_count() or 1),
        "SM_NUM_GPUS": str(gpus),
        "SM_NUM_NEURONS": "0",
        "SM_CHANNELS": json.dumps(sorted(channels)),
        "SM_HPS": json.dumps(user),
        "SM_FRAMEWORK_PARAMS": json.dumps(framework),
        "SM_INPUT_DATA_CONFIG": json.dumps(input_data_config(request)),
        "SM_RESOURCE_CONFIG": json.dumps(host.resource_config()),
        "SM_USER_ENTRY_POINT": program,
        "SM_MODULE_NAME": program.removesuffix(".py"),
        "SM_USER_ARGS": json.dumps(arguments_of(user)),
        "SM_LOG_LEVEL": str(framework.get("sagemaker_container_log_level", 20)),
    }
    found[container.TOOLKIT_VARIABLE] = json.dumps(
        {
            "channel_input_dirs": {name: found[f"SM_CHANNEL_{name.upper()}"] for name in channels},
            "current_host": host.name,
            "hosts": list(host.hosts),
            "hyperparameters": user,
            "input_config_dir": found["SM_INPUT_CONFIG_DIR"],
            "input_data_config": input_data_config(request),
            "job_name": request["TrainingJobName"],
            "model_dir": found["SM_MODEL_DIR"],
            "module_dir": found["SM_MODULE_DIR"],
            "num_cpus": os.cpu_count() or 1,
            "num_gpus": gpus,
            "output_data_dir": found["SM_OUTPUT_DATA_DIR"],
            "resource_config": host.resource_config(),
            "user_entry_point": program,
        }
    )
    return found


def as_text(value: Any) -> str:
    """Return a hyperparameter as one argument: text unquoted, mappings as a=1,b=2, others as Python prints them."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={part}" for key, part in sorted(value.items()))
    return value if isinstance(value, str) else str(value)


def arguments_of(user: Mapping[str, Any]) -> list[str]:
    """Return hyperparameters as arguments `--name value`, sorted by name; one-letter names get one dash."""
    words: list[str] = []
    for name, value in sorted(user.items()):
        words += [f"--{name}" if len(name) > 1 else f"-{name}", as_text(value)]
    return words


def user_hyperparameters(hyperparameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the user's own hyperparameters; those of the SDK and the toolkit start with `sagemaker_`."""
    return {name: decode(value) for name, value in hyperparameters.items() if not name.startswith("sagemaker_")}


def host_names(count: int) -> Sequence[str]:
    """Return the names of `count` hosts: algo-1, algo-2 and so on."""
    return [f"algo-{number + 1}" for number in range(count)]


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
