"""Identity of this machine, the same in all of its jobs: its EC2 instance, one of its GPUs, its name, or its last boot."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from sm_profiler.processes import PROC

DMI = Path("/sys/devices/virtual/dmi/id")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
_GPU = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]{8,64})\s*$", re.MULTILINE)
_LARGEST = 65536
_LONGEST = 64
# the kernel's own UTS namespace (PROC_UTS_INIT_INO); Docker gives each container another
_MACHINES_NAME = "uts:[4026531838]"


def host_id(*, in_container: bool, proc: Path = PROC, dmi: Path = DMI) -> str:
    """Return the machine's identity; "" if none is known.

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


def _host_name(proc: Path) -> str:
    """Return the machine's name; "" in a container that has its own, and if it is no name."""
    try:
        is_own = os.readlink(proc / "self/ns/uts") != _MACHINES_NAME
    except OSError:  # there is no /proc
        is_own = False
    name = socket.gethostname()[:_LONGEST]
    return "" if is_own or name.partition(".")[0] == "localhost" else name


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_LARGEST).decode("ascii", "replace")
    except OSError:
        return ""


MAX_MOUNTS = 16
SHARED_TYPES = frozenset((
    "afs", "beegfs", "ceph", "cifs", "fhgfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs",
    "smb3", "smbfs", "wekafs",
))  # fmt: skip
REMOTE_FUSE = (
    "s3", "gcs", "goofys", "rclone", "sshfs", "juicefs", "alluxio", "blobfuse", "sagemaker", "ceph", "gluster",
)  # fmt: skip


def shared_mounts(proc: Path = Path("/proc")) -> dict[str, str]:
    """Map each mount point of a shared file system to its type, from mountinfo; empty if it cannot be read."""
    try:
        text = (proc / "self/mountinfo").read_text(errors="replace")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) > 4 and kind and is_shared(kind[0], kind[1] if len(kind) > 1 else ""):  # the mount point
            found[place[4].replace("\\040", " ")] = kind[0]
        if len(found) >= MAX_MOUNTS:
            break
    return found


def is_shared(kind: str, device: str) -> bool:
    """Return whether a file system of this type, on this device, is reached over the network."""
    if kind in SHARED_TYPES:
        return True
    name = f"{kind} {device}".lower()
    return kind.startswith("fuse") and any(word in name for word in REMOTE_FUSE)
