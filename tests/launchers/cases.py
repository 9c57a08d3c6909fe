"""The launchers that are tested: how each starts a training, and the texts of its row in the documentation."""

import shutil

import attrs
import pytest
from launcher_helpers import BIN, free_port, program


@attrs.frozen
class Case:
    """One way to start a training.

    Attributes:
        name: as in the documentation's table.
        words: the command; the first word is a program of the launchers' environment, or of the system if it has a `/`.
        ranks: of the processes that train.
        named: whether the processes are named after their ranks; otherwise after their pids.
        processes: what is started, for the table.
        missing: what is not seen, for the table.
        same_errors: standard error is the same in each run, but for numbers.
        environment: further variables.
        kills: the launcher kills the processes at the end, at times before they have closed their files.
    """

    name: str
    words: tuple[str, ...]
    ranks: tuple[int, ...] = (0, 1)
    named: bool = True
    processes: str = "two ranks"
    missing: str = "nothing"
    same_errors: bool = True
    environment: dict[str, str] = attrs.field(factory=dict)
    kills: bool = False

    def command(self, folder: str) -> list[str]:
        """Return the command, with a free port and an own folder; skip if the launcher is missing."""
        first, *rest = self.words
        if first.startswith("/"):
            found = shutil.which(first[1:])
            if found is None:
                pytest.skip(f"{first[1:]} is not installed")
            first = found
            program("python")
        else:
            first = program(first)
        values = {"port": str(free_port()), "folder": folder, "python": str(BIN / "python")}
        return [first, *(word.format(**values) for word in rest)]


ALONE = {"ranks": (0,), "named": False, "processes": "one process"}
MPIRUN = ("/mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
ACCELERATE = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
DEEPSPEED = ("deepspeed", "--num_accelerators", "2", "--master_port", "{port}", "with_deepspeed.py")

CASES = (
    Case("`python train.py`", ("python", "alone.py"), **ALONE),
    Case("`python -m package.train`", ("python", "-m", "alone"), **ALONE),
    Case("`torchrun`", ("torchrun", "--standalone", "--nproc-per-node", "2", "grouped.py")),
    Case(
        "`accelerate launch`, one process",
        ("accelerate", "launch", "--cpu", "--num_processes", "1", *ACCELERATE, "with_accelerate.py"),
        **ALONE,
    ),
    Case(
        "`accelerate launch`, several processes",
        ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", *ACCELERATE, "with_accelerate.py"),
        same_errors=False,
    ),
    Case("`deepspeed`, ZeRO 1", (*DEEPSPEED, "1"), same_errors=False),
    Case("`deepspeed`, ZeRO 2", (*DEEPSPEED, "2"), same_errors=False),
    Case("`deepspeed`, ZeRO 3", (*DEEPSPEED, "3"), same_errors=False),
    Case(
        "Lightning, `ddp`",
        ("python", "with_lightning.py", "ddp"),
        processes="two ranks; the second is a script started again by the first",
        same_errors=False,
    ),
    Case(
        "Lightning, `ddp_spawn`",
        ("python", "with_lightning.py", "ddp_spawn"),
        processes="a main process that trains nothing, two ranks",
        same_errors=False,
    ),
    Case(
        "`mpirun`",
        (*MPIRUN, "-x", "MASTER_ADDR=127.0.0.1", "-x", "MASTER_PORT={port}", "{python}", "grouped.py"),
    ),
    Case(
        "`srun`",
        ("/sh", "srun_like.sh", "{python}", "{port}"),
        processes="two ranks, with the variables of srun's tasks; Slurm itself is not part of the test",
    ),
    Case(
        "Ray Train",
        ("python", "with_ray.py", "{folder}"),
        processes="two actors, each training on a thread of its own; a driver and Ray's servers",
        missing="steps outside the training function, in the last second: Ray kills its actors",
        same_errors=False,
        environment={"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"},
        kills=True,
    ),
    Case(
        "`multiprocessing`, spawn",
        ("python", "spawned.py", "spawn", "{port}"),
        processes="a main process that trains nothing, two ranks",
    ),
    Case(
        "`multiprocessing`, forkserver",
        ("python", "spawned.py", "forkserver", "{port}"),
        processes="a main process and a fork server that train nothing, two ranks",
    ),
    Case("a script that starts itself again (`os.execv`)", ("python", "again.py"), **ALONE),
    Case("notebook, `%run train.py`", ("python", "notebook.py", "run"), same_errors=False, **ALONE),
    Case(
        "notebook, cells that train",
        ("python", "notebook.py", "cells"),
        same_errors=False,
        missing="steps are seen from the first one on only if the hook starts before the model is created",
        **ALONE,
    ),
    Case("`uv run`", ("uv", "run", "--no-project", "--offline", "--python", "{python}", "alone.py"), **ALONE),
)
NOT_RUN = {
    "`conda run`": "conda is not on PyPI, from which the tests install; an environment of conda has `site-packages` like any"
    " other, so `sm_profiler_auto.pth` works there",
}
