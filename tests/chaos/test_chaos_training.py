"""A real training under `sm-profiler run`, with faults: its results stay the same, no process is left, and every step is
recorded or counted."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from sm_profiler.formats.event_names import STEP_TRAIN
from sm_profiler.hook.recorder import FLUSH_SECONDS
from sm_profiler.source import open_source

pytestmark = pytest.mark.long
SCRIPT = Path(__file__).with_name("chaos_training.py")
STEPS, EXIT_CODE = 100, 7
PAUSE = 0.015
BUSY_SECONDS = 1.5  # by which a busy machine may delay a flush
MARKERS = {"framework/training_job_end.ts", "system/training_job_end.ts"}
PREFIX = "out/job-1/profiler-output/"
LONG = pytest.mark.long
SEEDS = [0, *(pytest.param(seed, marks=LONG) for seed in range(1, 6))]
END = {"SIGTERM": 128 + signal.SIGTERM, "SIGINT": 128 + signal.SIGINT, "SIGKILL": 128 + signal.SIGKILL}


def dice_of(seed):
    return random.Random(seed)  # not for cryptography


class Training:
    """One `sm-profiler run` of the script, in a process group of its own."""

    def __init__(self, jobs, fault="", *, seed=0, pause=PAUSE):
        self.lines, self.errors = [], []
        command = [
            sys.executable,
            "-m",
            "sm_profiler",
            "run",
            "--config",
            jobs.config,
            SCRIPT,
            fault,
            str(pause),
            str(seed),
        ]
        self.process = subprocess.Popen(
            [*map(str, command)], env=jobs.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        streams = ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        self.threads = [threading.Thread(target=collect, args=each) for each in streams]
        for thread in self.threads:
            thread.start()

    def wait_for(self, word, timeout=60.0):
        """Wait until the script has printed a line that begins so."""
        deadline = time.monotonic() + timeout
        while not any(line.startswith(word) for line in self.lines):
            assert time.monotonic() < deadline, self.stderr
            assert self.process.poll() is None, self.stderr
            time.sleep(0.005)

    def wait(self, timeout=90.0):
        """Wait for the end and return the exit code."""
        code = self.process.wait(timeout)
        for thread in self.threads:
            thread.join(30)  # the monitor, which may end later, has the same standard error
        return code

    @property
    def pid(self):
        self.wait_for("pid ")
        return int(self.lines[0].split()[1])

    @property
    def stderr(self):
        return "".join(self.errors)

    @property
    def ends(self):
        """The monotonic time at which each step ended."""
        return {int(line.split()[1]): float(line.split()[2]) for line in list(self.lines) if line.startswith("step ")}

    def stop_and_continue(self, pid, seconds):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def collect(stream, lines):
    with stream:
        lines.extend(stream)


class Jobs:
    """A profile's folder, and the processes that write to it: an environment variable marks them all."""

    def __init__(self, folder):
        self.folder, self.root, self.config = folder, folder / "profile", folder / "config.json"
        self.mark = f"CHAOS_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        kept = {key: text for key, text in os.environ.items() if not key.startswith(("SM_PROFILER", "SMPROFILER"))}
        self.environment = {
            **kept, name: value, "CHAOS_FOLDER": str(self.root), "SM_PROFILER_ROOT": str(folder / "ml"),
            "PYTHONPATH": str(SCRIPT.parents[2]), "TRAINING_JOB_NAME": "job-1", "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        self.trainings = []
        self.configure()

    def configure(self, *, s3=False, close_seconds=60):
        parameters = {"LocalPath": str(self.root), "RotateFileCloseIntervalInSeconds": str(close_seconds)}
        config = {"ProfilingIntervalInMilliseconds": 100, "ProfilingParameters": parameters}
        self.config.write_text(json.dumps({**config, "S3OutputPath": "s3://profiles/out"} if s3 else config))

    def start(self, *args, **options):
        self.trainings.append(Training(self, *args, **options))
        return self.trainings[-1]

    def processes(self, part=""):
        """Return this test's processes whose command line has a part."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                marked = self.mark.encode() in (path / "environ").read_bytes().split(b"\0")
                if marked and part.encode() in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return found

    @property
    def monitor(self):
        [pid] = self.processes("sm_profiler.monitor.agent")
        return pid

    def wait_until_gone(self, seconds=30.0):
        deadline = time.monotonic() + seconds
        while left := self.processes():
            assert time.monotonic() < deadline, f"processes are left: {left}"
            time.sleep(0.05)

    def closed(self):
        """Return the closed files with their bytes."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for folder in ("system", "framework")
            for path in (self.root / folder).rglob("*.json")
        }


@pytest.fixture(scope="module")
def truth():
    done = subprocess.run(
        [sys.executable, SCRIPT, "", "0", "0"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == EXIT_CODE, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture
def jobs(tmp_path):
    made = Jobs(tmp_path)
    yield made
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)
    for training in made.trainings:
        training.wait()


def check_unharmed(jobs, training, truth):
    """Check that the training ran as without a profiler, and that no process is left."""
    assert training.wait() == EXIT_CODE, training.stderr
    assert training.lines[-1].strip() == truth
    jobs.wait_until_gone()


def recorded(folder, pid):
    """Return how often each step of a process is in a readable profile."""
    events = open_source(folder, cache=False).events()
    mine = events[events.phase.mask(STEP_TRAIN) & (events.pid == pid)]
    return Counter(mine.step.tolist())


def check_complete(folder, *trainings):
    for training in trainings:
        assert recorded(folder, training.pid) == Counter(range(STEPS)), training.stderr


def lost(training):
    """Return the number of events that the last line counts as lost."""
    return sum(map(int, re.findall(r"(\d+) events are lost", training.stderr)))


def dropped(folder):
    source = open_source(folder, cache=False)
    source.events()
    return max(record["args"]["dropped"] for record in source.metadata())


def warnings(training):
    own = ("configuration: ", "writing the profile ", "uploading to ", "exit code ", "nothing was recorded")
    lines = [line.removeprefix("sm-profiler: ") for line in training.errors if line.startswith("sm-profiler: ")]
    return [line for line in lines if not line.startswith(own)]


# Signals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_a_training_that_is_ended_by(jobs, truth, name, seed):
    dice = dice_of(seed)
    training = jobs.start(pause=0.04)
    pid = training.pid
    if seed < 3:
        training.wait_for(f"step {dice.randrange(60, 80)} ")
    else:  # while it loads, starts or trains
        time.sleep(dice.random() * 5)
    sent = time.monotonic()
    if name == "SIGINT":
        os.killpg(training.process.pid, signal.SIGINT)  # as a terminal does
    else:
        os.kill(training.process.pid if name == "SIGTERM" else pid, getattr(signal, name))
    code = training.wait()
    jobs.wait_until_gone()
    if code == EXIT_CODE:  # Python ignores a KeyboardInterrupt in some places
        assert name == "SIGINT"
        assert training.lines[-1].strip() == truth
    elif code == 1 and name == "SIGINT" and not training.ends:  # an interrupted import may raise errors of its own
        assert "KeyboardInterrupt" in training.stderr or "Error" in training.stderr
    else:
        assert code == END[name], training.stderr
    flushed = sent if name == "SIGINT" else sent - FLUSH_SECONDS - BUSY_SECONDS
    expected = {step for step, ended in training.ends.items() if ended < flushed}
    found = recorded(jobs.root, pid) if list(jobs.root.glob("framework/**/*.json")) else Counter()
    assert expected <= set(found) <= {*training.ends, len(training.ends)}
    assert expected or seed >= 3
    assert set(found.values()) <= {1}
    assert not list(jobs.root.rglob("*.tmp"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_monitor_that_is_killed(jobs, truth, seed):
    dice = dice_of(seed)
    training = jobs.start()
    training.wait_for(f"step {dice.randrange(90)} ")
    os.kill(jobs.monitor, signal.SIGKILL)
    check_unharmed(jobs, training, truth)
    check_complete(jobs.root, training)
    [line] = warnings(training)
    assert "the monitor ended unexpectedly" in line


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("part", ["monitor", "training"])
def test_a_process_that_is_stopped_and_continued(jobs, truth, part, seed):
    dice = dice_of(seed)
    training = jobs.start()
    for step in sorted(dice.sample(range(90), 2)):
        training.wait_for(f"step {step} ")
        pid = jobs.monitor if part == "monitor" else training.pid
        training.stop_and_continue(pid, 0.2 + dice.random())
    check_unharmed(jobs, training, truth)
    check_complete(jobs.root, training)
    assert warnings(training) == []
    assert len(open_source(jobs.root, cache=False).system()) > 0


# Disks ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", ["full disk", pytest.param("read-only", marks=LONG), "hanging disk"])
def test_a_disk_that_fails_to_the_end(jobs, truth, fault, seed):
    training = jobs.start(fault, seed=seed, pause=0.03)
    check_unharmed(jobs, training, truth)
    found = recorded(jobs.root, training.pid)
    assert set(found.values()) <= {1}
    missing = STEPS - len(found)
    assert missing > 0
    assert set(found) == set(range(len(found)))  # from the first on
    assert missing <= lost(training), training.stderr
    assert len(warnings(training)) <= 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", [pytest.param("full disk", marks=LONG), "read-only", "hanging disk"])
def test_a_disk_that_fails_for_a_while(jobs, truth, fault, seed):
    training = jobs.start(f"{fault} for a while", seed=seed, pause=0.03)
    check_unharmed(jobs, training, truth)
    check_complete(jobs.root, training)
    assert dropped(jobs.root) == lost(training) == 0
    assert len(warnings(training)) <= 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_is_removed(jobs, truth, replaced, seed):
    dice = dice_of(seed)
    training = jobs.start(pause=0.05)
    training.wait_for(f"step {dice.randrange(20, 50)} ")
    away = jobs.folder / "away"
    jobs.root.rename(away)
    if replaced:
        jobs.root.write_text("in the way")
    shutil.rmtree(away)
    check_unharmed(jobs, training, truth)
    if replaced:
        assert jobs.root.read_text() == "in the way"
        assert lost(training) >= STEPS, training.stderr
    else:
        found = recorded(jobs.root, training.pid)
        assert set(found.values()) == {1}
        assert max(found) == STEPS - 1
        assert dropped(jobs.root) == lost(training) >= STEPS - len(found)
    assert len(warnings(training)) <= 4  # two of the hook, two of the monitor


# Processes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", ["forks", "workers"])
def test_children_that_come_and_go(jobs, truth, fault, seed):
    training = jobs.start(fault, seed=seed)
    check_unharmed(jobs, training, truth)
    check_complete(jobs.root, training)
    assert warnings(training) == []
    children, failed = map(int, re.findall(r"\d+", training.lines[-2]))
    assert failed == 0
    assert (children > 5) == (fault == "forks")


@pytest.mark.parametrize("seed", SEEDS)
def test_two_runs_in_one_folder(jobs, truth, seed):
    dice = dice_of(seed)
    first = jobs.start()
    time.sleep(dice.random() * 2)
    second = jobs.start(pause=PAUSE * (0.5 + dice.random()))
    first.wait_for("step 0 ")
    second.wait_for("step 0 ")
    assert jobs.monitor
    for training in (first, second):
        assert training.wait() == EXIT_CODE, training.stderr
        assert training.lines[-1].strip() == truth
        assert warnings(training) == []
    jobs.wait_until_gone()
    check_complete(jobs.root, first, second)


# Surroundings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clock_that_is_set_forward_and_back(jobs, truth, seed):
    training = jobs.start("clock", seed=seed, pause=0.03)
    check_unharmed(jobs, training, truth)
    check_complete(jobs.root, training)
    source = open_source(jobs.root, cache=False)
    events = source.events()
    steps = events[events.phase.mask(STEP_TRAIN)]
    assert (steps.duration_us >= 0).all()
    assert (steps.duration_us < 60e6).all()
    assert warnings(training) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_ten_thousand_files_in_the_folder(jobs, truth, seed):
    dice = dice_of(seed)
    base = 1_795_261_080_000_000
    places = {
        "timelines": lambda number: f"framework/pevents/2026112111/{base + number}_9-algo-1_pythontimeline.json",
        "left open": lambda number: f"framework/pevents/9-algo-1_pythontimeline_4194304_0_{number}.json.tmp",
        "minutes": lambda number: f"system/incremental/2026112111/{base // 1_000_000 + 60 * number}.algo-1.json",
        "others": lambda number: f"notes/{number}.txt",
    }
    for number in range(10_000):
        path = jobs.root / places[dice.choice(sorted(places))](number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[]\n")
    training = jobs.start()
    check_unharmed(jobs, training, truth)
    check_complete(jobs.root, training)
    assert warnings(training) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", ["expired_credentials", "missing_bucket"])
def test_uploads_that_fail_for_a_while(faulty_s3, tmp_path, truth, fault, seed):
    dice = dice_of(seed)
    jobs = Jobs(tmp_path)
    jobs.configure(s3=True, close_seconds=0.3)
    try:
        training = jobs.start(seed=seed, pause=0.04)
        training.wait_for(f"step {dice.randrange(60)} ")
        faulty_s3.fail(fault)
        deadline = time.monotonic() + 20
        while not faulty_s3.met:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(dice.random())
        faulty_s3.recover()
        check_unharmed(jobs, training, truth)
    finally:
        for pid in jobs.processes():
            os.kill(pid, signal.SIGKILL)
    stored = faulty_s3.below(PREFIX)
    assert {key: content for key, content in stored.items() if key not in MARKERS} == jobs.closed()
    for key, content in stored.items():
        path = tmp_path / "stored" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    check_complete(tmp_path / "stored", training)
    assert len(warnings(training)) <= 1
