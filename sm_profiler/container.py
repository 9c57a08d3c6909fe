"""Layout of SageMaker's training and processing containers: paths, environment variables, resourceconfig.json."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from sm_profiler.settings import INSTANCE_TYPE, LOCAL_PATH, NODE_RANK, NODES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

OPT_ML = "/opt/ml"

# Training containers.
INPUT = "/opt/ml/input"
INPUT_CONFIG = "/opt/ml/input/config"
PROFILER_CONFIG = "/opt/ml/input/config/profilerconfig.json"
RESOURCE_CONFIG = "/opt/ml/input/config/resourceconfig.json"
INPUT_DATA = "/opt/ml/input/data"
CODE = "/opt/ml/code"
MODEL = "/opt/ml/model"
OUTPUT = "/opt/ml/output"
OUTPUT_DATA = "/opt/ml/output/data"
OUTPUT_INTERMEDIATE = "/opt/ml/output/intermediate"
CHECKPOINTS = "/opt/ml/checkpoints"
FAILURE = "/opt/ml/output/failure"
DEFAULT_PROFILER_OUTPUT: str = LOCAL_PATH.default

# Processing containers, which run rules.
PROCESSING_CONFIG = "/opt/ml/config/processingjobconfig.json"
PROCESSING_RESOURCE_CONFIG = "/opt/ml/config/resourceconfig.json"
RULE_INPUT = "/opt/ml/processing/input/profiler"
RULE_OUTPUT = "/opt/ml/processing/output/rule"
EXIT_MESSAGE = "/opt/ml/output/message"

# Environment variables of the service and its training toolkit.
JOB_NAME_VARIABLE = "TRAINING_JOB_NAME"
TOOLKIT_JOB_NAME_VARIABLE = "SM_JOB_NAME"
TOOLKIT_VARIABLE = "SM_TRAINING_ENV"
STOP_SIGNAL_VARIABLE = "SAGEMAKER_ENV_RULE_STOP_SIGNAL_FILE"

ISOLATED_FOLDER = "sm-profiler"  # of the agent's files in a folder that the service stores: the job has no network

DEFAULT_NODE = "algo-1"
# Number of this node and number of nodes outside of the service: our own variables, then those of Kubernetes' training
# operator, Slurm and torchrun.
NODE_VARIABLES = (
    (NODE_RANK.name, NODES.name),
    ("PET_NODE_RANK", "PET_NNODES"),
    ("SLURM_NODEID", "SLURM_NNODES"),
    ("GROUP_RANK", "GROUP_WORLD_SIZE"),
)
MAX_DIGITS = 5  # of a number of nodes
_SECRET = re.compile(r"secret|token|passw|credential|private|api_?key|access_?key", re.IGNORECASE)
_VARIABLES = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})|%[%A-Za-z]|\$\$")
_CODES = ("%%", "$$", "%j", "%u", "%h")
MAX_TYPE = 100  # characters


def relocated(path: str, root: str | os.PathLike[str]) -> Path:
    """Return a path with a leading `/opt/ml` replaced by `root`; other paths are returned as they are."""
    from pathlib import Path  # for a quick import of the facade

    if path == OPT_ML or path.startswith(OPT_ML + "/"):
        return Path(os.fspath(root) + path[len(OPT_ML) :])
    return Path(path)


def relocated_text(text: str, root: str | os.PathLike[str]) -> str:
    """Return a text with every `/opt/ml` replaced by `root`."""
    return re.sub(rf"{OPT_ML}(?![\w-])", lambda _: os.fspath(root), text)


def expanded(text: str, environment: Mapping[str, str] = os.environ, job: str = "", user: str = "") -> str:
    """Return a path or URI with `~`, `$NAME`, `${NAME}`, `%u` (user), `%h` (host) and `%j` (job) replaced.

    `$$` and `%%` are replaced by the single characters.

    Args:
        text: the path or URI.
        environment: the variables.
        job: replaces `%j`, which stays if this is empty, as does `%u` for the user.
        user: replaces `%u`.

    Raises:
        ProfilerError: a variable is not set, is empty, or has the name of a secret; or a letter after % has no meaning.
    """
    from sm_profiler.errors import ProfilerError  # for a quick import of the facade

    fields = {"%%": "%", "$$": "$", "%j": job, "%u": user, "%h": os.uname().nodename.partition(".")[0]}

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if problem := _refused(match):
            raise ProfilerError(f"{text}: {problem}")
        if name is None:
            return fields[match[0]] or match[0]
        if not environment.get(name):
            raise ProfilerError(f"{text}: {_unset(name)}")
        return environment[name]

    if "$" not in text and "%" not in text and not text.startswith("~"):
        return text
    if text == "~" or text.startswith("~/"):
        text = (environment.get("HOME") or os.path.expanduser("~")) + text[1:]  # a text
    return _VARIABLES.sub(value, text)


def path_problems(text: str, environment: Mapping[str, str] = os.environ) -> tuple[list[str], list[str]]:
    """Return what `expanded` refuses in a path or URI: everywhere, and in this environment."""
    found = list(_VARIABLES.finditer(text))
    names = [name for match in found if (name := match[1] or match[2]) and not _refused(match)]
    unset = [_unset(name) for name in names if not environment.get(name)]
    return list(dict.fromkeys(filter(None, map(_refused, found)))), list(dict.fromkeys(unset))


def _refused(match: re.Match[str]) -> str:
    name = match[1] or match[2]
    if name is None and match[0] not in _CODES:
        return f"{match[0]} has no meaning: use %u (user), %h (host), %j (job) or %% (the character)"
    if name is not None and _SECRET.search(
        name
    ):  # a configuration may come from others, and paths and keys are no secrets
        return f"{name} has the name of a secret, which no path may contain"
    return ""


def _unset(name: str) -> str:
    return f"the environment variable {name} is not set"


def escaped(path: str) -> str:
    """Return a path as `expanded` reads it, without variables."""
    return path.replace("%", "%%").replace("$", "$$")


def rooted(path: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return a path with a leading `/opt/ml` replaced by SM_PROFILER_ROOT, if that is set."""
    return relocated(path, expanded(ROOT.read(environment) or OPT_ML, environment))


@attrs.frozen
class Resources:
    """This machine's place in its job, as resourceconfig.json describes it.

    Attributes:
        node: `algo-1`, `algo-2` and so on.
        hosts: names of the job's nodes; empty if unknown.
        instance_type: for example `ml.g5.xlarge`; None if unknown.
        interface: the network interface that connects the nodes; "" if unknown.
    """

    node: str = DEFAULT_NODE
    hosts: tuple[str, ...] = ()
    instance_type: str | None = None
    interface: str = ""

    @property
    def first_node(self) -> str:
        """The node with the lowest number; this one if the nodes are unknown."""
        return min(self.hosts, key=_host_number, default=self.node)

    @property
    def is_first_node(self) -> bool:
        """True if this node has the lowest number, or the nodes are unknown."""
        return self.node == self.first_node


def read_resources(environment: Mapping[str, str] = os.environ, path: str = RESOURCE_CONFIG) -> Resources:
    """Read resourceconfig.json, by default a training job's; without one, ask the launcher's variables.

    A damaged file or field leaves the defaults.
    """
    import json  # for a quick import of the facade

    try:
        found = json.loads(rooted(path, environment).read_text("utf-8-sig"))
    except FileNotFoundError:
        own_type = INSTANCE_TYPE.text(environment)[:MAX_TYPE]
        return attrs.evolve(_from_launcher(environment), instance_type=own_type or None)
    except (OSError, ValueError, RecursionError):
        return Resources()
    if not isinstance(found, dict) or not isinstance(node := found.get("current_host"), str):
        return Resources()
    hosts, instance_type, interface = (
        found.get(name) for name in ("hosts", "current_instance_type", "network_interface_name")
    )
    return Resources(
        node=node,
        hosts=tuple(map(str, hosts)) if isinstance(hosts, list) else (),
        instance_type=instance_type if isinstance(instance_type, str) else None,
        interface=interface if isinstance(interface, str) else "",
    )


def _from_launcher(environment: Mapping[str, str]) -> Resources:
    """Return this machine's place among the nodes of a launcher outside of the service."""
    for own, all_nodes in NODE_VARIABLES:
        rank, count = (_whole(environment.get(name, "")) for name in (own, all_nodes))
        if rank is not None:
            hosts = [f"algo-{number}" for number in range(1, max(count or 1, 1) + 1)]
            node = f"algo-{rank + 1}"
            return Resources(node, tuple(hosts if node in hosts else [*hosts, node]))
    return Resources()


def _whole(text: str) -> int | None:
    """Return a number of nodes; for an elastic range such as `2:4` the smaller."""
    number = text.partition(":")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS else None


def _host_number(host: str) -> tuple[int, str]:
    digits = host.rpartition("-")[2]
    return (int(digits) if digits.isdecimal() else 0, host)
