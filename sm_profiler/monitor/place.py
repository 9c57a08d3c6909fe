"""The folder of a job's profile on this machine: which job and user it belongs to, and variables in its path.

A folder belongs to the job and user that its claim names. Every process of a job finds the same folder without a common
parent: a claim stays with the profile, and candidates are tried in a fixed order.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from sm_profiler.config import Profile
from sm_profiler.container import PROFILER_CONFIG, RESOURCE_CONFIG, expanded, rooted
from sm_profiler.errors import ProfilerError
from sm_profiler.formats.layout import END_MARKERS, FRAMEWORK, IGNORED_FOLDER, SYSTEM
from sm_profiler.identity import login_name
from sm_profiler.monitor.node_state import locked
from sm_profiler.monitor.task import is_own_job, job_name
from sm_profiler.printable import logger_for, printable
from sm_profiler.processes import start_time
from sm_profiler.settings import JOB

logger = logger_for("sm_profiler")

CLAIM_FILE = "owner"  # in the ignored folder: the lines of an `Owner`
MAX_NAME = 80  # characters of a job's name in a folder's name
MAX_SAME = 9  # jobs whose names differ only in characters that no folder has
_MAX_CLAIM = 4096
_PARTS = 3
_NAMELESS = "-"
_OF_OTHERS = "belongs to another user"
_OF_OTHERS_HINT = "; with %u in LocalPath, each user has a folder there"
_SHARED = stat.S_IWOTH | stat.S_ISVTX  # as /tmp: files of others cannot be removed


@attrs.frozen
class Owner:
    """A job of a user.

    Attributes:
        job: its name.
        user: the user's name.
        process: of a job that nothing names, its first process: host, pid and start time; otherwise "".
    """

    job: str
    user: str
    process: str = attrs.field(default="", eq=False)

    @property
    def folder(self) -> str:
        """Name for a folder."""
        return f"{self.user}-{in_path(self.job)}"

    def __str__(self) -> str:
        return printable(f"job {self.job} of {self.user}")


def user_name() -> str:
    """Return the name of the user that this process runs as, as a part of a path."""
    return in_path(login_name())


def in_path(text: str) -> str:
    """Return a text as a part of a path."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).lstrip(".-")[:MAX_NAME] or "job"


def with_variables(profile: Profile, environment: Mapping[str, str] = os.environ) -> Profile:
    """Return a profile whose paths have their variables replaced."""
    job, user = in_path(job_name(environment)), user_name()

    def replaced(key: str, text: str) -> str:
        try:
            return expanded(text, environment, job, user)
        except ProfilerError as error:
            raise ProfilerError(f"{key}: {error}") from None

    return attrs.evolve(
        profile,
        local_path=replaced("LocalPath", profile.local_path),
        s3_output_path=replaced("S3OutputPath", profile.s3_output_path or "") or None,
    )


def settle(profile: Profile, environment: Mapping[str, str] = os.environ) -> Profile:
    """Return a profile whose folder belongs to this job and user; it is created if necessary.

    In a container of SageMaker, which runs one job, and where the service uploads, it is the `LocalPath`.

    Raises:
        ProfilerError: a variable in a path is not set, or no folder can be written.
    """
    names_user = "%u" in profile.local_path
    profile = with_variables(profile, environment)
    given = rooted(profile.local_path, environment)
    if not _has_own_folder(profile, environment):
        return profile
    owner, problems = _this_job(environment), list[str]()
    for folder in _candidates(given, owner, uploads=bool(profile.s3_output_path)):
        try:
            other, new = _claim(folder, owner)
        except OSError as error:
            problems.append(printable(f"{error.filename or folder}: {error.strerror or error}"))
            continue
        if other is not None:
            problems.append(f"{printable(folder)} has the profile of {other}")
            continue
        if problems and new:
            of_others = problems[0].endswith(_OF_OTHERS) or _is_of_others(given)
            hint = _OF_OTHERS_HINT if of_others and not names_user else ""
            logger.warning("sm-profiler: %s; this profile is written to %s%s", problems[0], printable(folder), hint)
        elif new and folder != given:
            logger.warning("sm-profiler: writing the profile to %s", printable(folder))
        return attrs.evolve(profile, local_path=str(folder))
    raise ProfilerError(f"no folder for the profile: {'; '.join(dict.fromkeys(problems))}")


def find(profile: Profile, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder that a process of this job has settled in; None if none has."""
    profile = with_variables(profile, environment)
    given = rooted(profile.local_path, environment)
    if not _has_own_folder(profile, environment):
        return given
    owner = _this_job(environment)
    for folder in _candidates(given, owner, uploads=bool(profile.s3_output_path)):
        with contextlib.suppress(OSError):
            _refuse_planted(folder)
            if read_claim(folder) == owner:
                return folder
    return given if given.is_dir() and read_claim(given) is None else None


def read_claim(folder: Path) -> Owner | None:
    """Return the owner of a folder; None if it has none."""
    try:
        fd = os.open(folder / IGNORED_FOLDER / CLAIM_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        return _owner(os.read(fd, _MAX_CLAIM))
    finally:
        os.close(fd)


def others_in(folder: Path) -> list[Path]:
    """Return the folders of other jobs in a folder that its first job has taken."""
    return sorted(path.parents[1] for path in folder.glob(f"*/{IGNORED_FOLDER}/{CLAIM_FILE}"))


def release(folder: Path) -> None:
    """Give up a folder in which nothing was recorded."""
    (folder / IGNORED_FOLDER / CLAIM_FILE).unlink(missing_ok=True)


def _has_own_folder(profile: Profile, environment: Mapping[str, str]) -> bool:
    if rooted(RESOURCE_CONFIG, environment).exists():
        return False
    return is_own_job(profile, environment, rooted(PROFILER_CONFIG, environment))


def _candidates(given: Path, owner: Owner, *, uploads: bool) -> Iterator[Path]:
    """Yield the folders that may become a job's, the best first."""
    with contextlib.suppress(OSError):
        _refuse_planted(given)
        given = given.resolve() if given.is_symlink() else given
    if not _is_shared(given):
        yield given
    yield from _numbered(given / owner.folder)
    import tempfile  # rarely needed

    # Files that are uploaded may disappear with the job; others must be found again.
    places = [Path(tempfile.gettempdir(), f"sm-profiler-{owner.folder}")]
    if not uploads:
        places.insert(0, Path("sm-profiler", owner.folder).absolute())
    for place in places:
        yield from _numbered(place)


def _numbered(folder: Path) -> Iterator[Path]:
    yield folder
    for number in range(2, MAX_SAME + 1):
        yield folder.with_name(f"{folder.name}-{number}")


def _is_shared(folder: Path) -> bool:
    """Return whether a folder is for several users, like /tmp."""
    try:
        return folder.stat().st_mode & _SHARED == _SHARED
    except OSError:
        return False


def _is_of_others(folder: Path) -> bool:
    """Return whether a folder that cannot be taken has another user's profile, and is no part of the system."""
    with contextlib.suppress(OSError):
        owner = folder.lstat().st_uid
        return owner != os.geteuid() and (owner != 0 or (folder / IGNORED_FOLDER).exists())
    return False


def _claim(folder: Path, owner: Owner) -> tuple[Owner | None, bool]:
    """Claim a folder; return its other owner, or None, and whether the claim is new.

    Raises:
        OSError: the folder cannot be created or written, or belongs to another user in a place like /tmp.
    """
    _refuse_planted(folder)
    _make(folder, owner.user)
    status = folder.lstat()
    if _is_shared(folder.parent) and status.st_uid != os.geteuid():
        raise PermissionError(0, _OF_OTHERS, str(folder))
    with locked(folder / IGNORED_FOLDER / CLAIM_FILE) as fd:
        before = _owner(os.read(fd, _MAX_CLAIM))
        if before == owner:
            return None, False
        if before is not None and not _is_continued(folder, before, owner):
            return before, False
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{owner.job}\n{owner.user}\n{owner.process}".encode("utf-8", "replace"), 0)
        return None, True


def _refuse_planted(folder: Path) -> None:
    """Refuse a path that another user could lead elsewhere: in a place like /tmp, anybody can create a part of it.

    Parts of it that are themselves for several users are not refused, because other users' jobs create them.

    Raises:
        PermissionError: a part of the path belongs to another user.
    """
    path = Path(os.path.abspath(folder))  # links stay as they are
    for part in (*reversed(path.parents), path):
        if not _is_shared(part.parent):
            continue
        try:
            status = part.lstat()
        except FileNotFoundError:
            return
        is_for_all = stat.S_ISDIR(status.st_mode) and status.st_mode & _SHARED == _SHARED
        if status.st_uid not in {0, os.geteuid()} and not is_for_all:
            raise PermissionError(0, _OF_OTHERS, str(part))


def _is_continued(folder: Path, before: Owner, owner: Owner) -> bool:
    """Return whether a job without a name starts again: its last attempt was interrupted."""
    if not (before.process and owner.process) or before.user != owner.user:
        return False
    host, pid, started = before.process.split(" ")
    is_over = host == owner.process.split(" ", 1)[0] and pid.isdigit() and start_time(int(pid)) != started
    return is_over and not any((folder / key).exists() for key in END_MARKERS)


def _this_job(environment: Mapping[str, str]) -> Owner:
    job, user = job_name(environment).replace("\n", " "), user_name()
    names = {name: value for name, value in environment.items() if name != JOB.name}
    if job_name(names, _NAMELESS) != _NAMELESS:
        return Owner(job, user)
    return Owner(job, user, f"{os.uname().nodename} {os.getpid()} {start_time(os.getpid())}")


def _owner(text: bytes) -> Owner | None:
    parts = text.decode("utf-8", "replace").split("\n")
    return Owner(*parts) if len(parts) == _PARTS and parts[2].count(" ") in {0, _PARTS - 1} else None


def _make(folder: Path, user: str) -> None:
    """Create a folder and those above it.

    Those above it can be written by all users who can write to the folder in which the first is created, up to a folder
    with the user's name: otherwise the first user would shut out the others, who need folders there, too. Below a folder
    such as /tmp, the rest is private.
    """
    missing = [folder, *folder.parents]
    while missing and missing[-1].exists():
        missing.pop()
    named = re.compile(rf"(?<![\w.]){re.escape(user)}(?![\w.])")
    private = next((part for part in missing[1:] if named.search(part.name)), folder)
    is_above = True
    for part in reversed(missing):
        is_above = is_above and part != private
        with contextlib.suppress(FileExistsError):
            part.mkdir(0o700 if _is_shared(part.parent) else 0o777)
            if is_above:
                share(part)


def share(folder: Path) -> None:
    """Let others write to a new folder as they may write to the one that it is in, but not remove each other's files."""
    with contextlib.suppress(OSError):  # a file system without permissions
        around, status = folder.parent.stat(), folder.stat()
        if around.st_mode & stat.S_IWOTH:
            folder.chmod(0o1777)
        elif around.st_mode & stat.S_IWGRP and around.st_gid == status.st_gid:
            folder.chmod(stat.S_IMODE(status.st_mode) | stat.S_IRWXG | stat.S_ISVTX)


JOB_FILE = "job"  # in the ignored folder of a container, which runs one job after another: the job of the profile
EARLIER = "earlier"


def set_aside_other_job(root: Path, job: str) -> bool:
    """Move another job's profile out of the way; return whether there was one.

    Nodes with a shared folder may call this at once: the first moves, and the others find their own job's name.

    Args:
        root: the `profiler-output` folder.
        job: what distinguishes this job from others, the same for all its nodes and attempts.

    Raises:
        OSError: the folder cannot be written, or another node holds the lock for too long.
    """
    ignored = root / IGNORED_FOLDER
    with locked(ignored / JOB_FILE) as fd:
        name = job.encode("utf-8", "replace")
        before = os.read(fd, os.fstat(fd).st_size)
        if before == name:
            return False
        moved = bool(before) and _move(root, ignored / EARLIER / time.strftime("%Y%m%d-%H%M%S"))
        os.ftruncate(fd, 0)
        os.pwrite(fd, name, 0)
        return moved


def _move(root: Path, place: Path) -> bool:
    found = [root / name for name in (SYSTEM, FRAMEWORK) if (root / name).exists()]
    for number in range(1000 if found else 0):
        free = place if number == 0 else place.with_name(f"{place.name}-{number}")
        with contextlib.suppress(FileExistsError):
            free.mkdir(parents=True)
            for folder in found:
                folder.rename(free / folder.name)
            return True
    return False
