"""File systems that other machines use, too: NFS, EFS, Lustre and the like."""

from __future__ import annotations

from pathlib import Path

MAX_MOUNTS = 16
SHARED_TYPES = frozenset(
    [
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fhgfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "smb3",
        "smbfs",
        "wekafs",
    ]
)
REMOTE_FUSE = (
    "s3",
    "gcs",
    "goofys",
    "rclone",
    "sshfs",
    "juicefs",
    "alluxio",
    "blobfuse",
    "sagemaker",
    "ceph",
    "gluster",
)


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
