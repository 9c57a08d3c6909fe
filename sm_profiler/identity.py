"""Names of the user, account, job and machine, as Slurm, Kubernetes or the variables of the job have them; the machine's id."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from sm_profiler.container import INPUT_CONFIG
from sm_profiler.printable import printable
from sm_profiler.processes import PROC
from sm_profiler.settings import ACCOUNT, HOST, JOB, JOB_ID, LABELS_FILE, NAMESPACE, POD, QUEUE, USER

KEYS = ("user", "account", "job", "job_id", "queue", "namespace", "pod", "host")
SCRIPT = "script"  # key of what a training process runs, which no scheduler names
LABEL = "label:"  # begins the key of a pod's label
# Among system metrics: types of the rows that name the job's owner, and two more keys of theirs.
OWNER_TYPES = IDENTITY_TYPE, LABEL_TYPE = "identity", "label"
MACHINE, INSTANCE_TYPE = "machine", "instance_type"
NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
MAX_TEXT, MAX_LABELS = 200, 60
_LARGEST = 65536
# Our own variables come first; then those that Slurm sets.
_VARIABLES = {
    "user": (USER.name, "SLURM_JOB_USER"),
    "account": (ACCOUNT.name, "SLURM_JOB_ACCOUNT"),
    "job": (JOB.name, "SLURM_JOB_NAME"),
    "job_id": (JOB_ID.name, "SLURM_JOB_ID"),
    "queue": (QUEUE.name, "SLURM_JOB_PARTITION"),
    "namespace": (NAMESPACE.name,),
    "pod": (POD.name,),
    "host": (HOST.name, "SLURMD_NODENAME"),
}
# Labels that name what a variable does not, the surest first.
_FROM_LABELS = {
    "user": ("user", "owner", "username", "created-by"),
    "account": ("account", "team", "project", "cost-center"),
    "job": ("jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "job-name"),
    "queue": ("kueue.x-k8s.io/queue-name",),
}
# Names by default that another machine or container has later: the id is surer.
_NOT_LASTING = re.compile(r"[0-9a-f]{12}|ip-(?:[0-9]{1,3}-){3}[0-9]{1,3}(?:\..*)?|localhost(?:\..*)?")
DMI = Path("/sys/devices/virtual/dmi/id")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
_TYPE = re.compile(r"[a-z][a-z0-9-]{1,31}\.[a-z0-9-]{1,31}")
_GPU = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]{8,64})\s*$", re.MULTILINE)
_LONGEST = 64
# the kernel's own UTS namespace (PROC_UTS_INIT_INO); Docker gives each container another
_MACHINES_NAME = "uts:[4026531838]"
_LABEL_LINE = re.compile(r'([\w./-]{1,317})="((?:[^"\\]|\\.)*)"')


def identity(
    environment: Mapping[str, str] = os.environ,
    *,
    labels_file: str | None = None,
    namespace_file: str = NAMESPACE_FILE,
    input_config: str = INPUT_CONFIG,
) -> dict[str, str]:
    """Return what is known of KEYS, and of a pod's labels, each with LABEL before its name; never raises.

    Args:
        environment: the process's variables.
        labels_file: labels in the format of the downward API; default: the setting LABELS_FILE.
        namespace_file: Kubernetes writes it into each pod with a service account.
        input_config: the folder that every SageMaker training container has.
    """
    found = {key: value for key, names in _VARIABLES.items() if (value := _first(environment, names))}
    labels = read_labels(labels_file or LABELS_FILE.read(environment))
    in_pod = "KUBERNETES_SERVICE_HOST" in environment
    inside = Path(input_config).is_dir()
    if in_pod:
        found.setdefault("namespace", _text(namespace_file).strip())
        found.setdefault("pod", environment.get("HOSTNAME", ""))
    for key, names in _FROM_LABELS.items():
        found.setdefault(key, _first(labels, names))
    if not (in_pod or inside):  # the user of a container is the image's, mostly root
        found["user"] = found["user"] or ("" if os.getuid() == 0 else login_name(environment))
    if not inside:  # there it is algo-1, or an address that another machine gets later
        found.setdefault("host", socket.gethostname())
    found |= {LABEL + key: value for key, value in labels.items()}
    return {key: printable(value)[:MAX_TEXT] for key, value in found.items() if value}


def machine_of(who: Mapping[str, str], machine: str) -> str:
    """Return a machine's name in a variable or the scheduler's; otherwise its id.

    Args:
        who: what `identity` returned there.
        machine: its id, the same in all of its jobs; "" if none is known.
    """
    name = who.get("host", "")
    is_own = not machine or (name != who.get("pod") and ("pod" in who or not _NOT_LASTING.fullmatch(name)))
    return name if name and is_own else machine


def read_labels(path: str) -> dict[str, str]:
    """Return the labels in a file of the downward API; none if it cannot be read."""
    found = _LABEL_LINE.findall(_text(path))[:MAX_LABELS]
    return {key: re.sub(r"\\(.)", r"\1", value) for key, value in found}


def host_id(*, in_container: bool, proc: Path = PROC, dmi: Path = DMI) -> str:
    """Return this machine's identity, the same in all of its jobs: its EC2 instance, one of its GPUs, its name, or its last boot.

    It is "" if none is known.

    A container's host name is that of the container, so its identity is the id of the kernel's boot, which all containers of
    a machine share until it starts again.

    Args:
        in_container: this is a training container, whose host name is that of the node in the job (`algo-1`) or an
            address that another machine gets later.
        proc: the process file system.
        dmi: the firmware's description of the machine; Nitro instances have their id there.
    """
    found = _INSTANCE.fullmatch(_text(dmi / "board_asset_tag").strip())
    if found:
        return found[0]
    gpus = (_GPU.search(_text(file)) for file in proc.glob("driver/nvidia/gpus/*/information"))
    first = min((gpu[1] for gpu in gpus if gpu), default="")
    return first or ("" if in_container else _host_name(proc)) or _text(proc / "sys/kernel/random/boot_id").strip()


def instance_type(dmi: Path = DMI) -> str:
    """Return the type of this EC2 instance, such as `p4d.24xlarge`; "" elsewhere.

    Args:
        dmi: the firmware's description of the machine; Nitro instances have their type there.
    """
    found = _TYPE.fullmatch(_text(dmi / "product_name").strip())
    return found[0] if found and _text(dmi / "sys_vendor").strip() == "Amazon EC2" else ""


def _host_name(proc: Path) -> str:
    """Return the machine's name; "" in a container that has its own, and if it is no name."""
    try:
        is_own = os.readlink(proc / "self/ns/uts") != _MACHINES_NAME
    except OSError:  # there is no /proc
        is_own = False
    name = socket.gethostname()[:_LONGEST]
    return "" if is_own or name.partition(".")[0] == "localhost" else name


def _first(values: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((values[name] for name in names if values.get(name)), "")


def login_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the user that this process runs as.

    In a container, the user of a cluster often has no entry among the users: then USER or LOGNAME has the name, as Slurm
    and Apptainer pass it on, and without them it is the number.
    """
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except (KeyError, OSError):
        return environment.get("USER") or environment.get("LOGNAME") or str(os.geteuid())


def _text(path: str | Path) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
