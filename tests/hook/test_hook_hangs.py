"""Trainings that stop: the hook writes the stacks in time to survive a kill, and the verdict names process and line."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm_profiler.formats.trace_recovery import recover_traces
from sm_profiler.hook.clock import Timebase
from sm_profiler.hook.hang import DeadThreads, HangWatch, Work, work_done
from sm_profiler.report.build import build_report
from sm_profiler.report.report_json import to_json
from sm_profiler.settings import JOB
from sm_profiler.source import ProfileSource
from sm_profiler.storage import open_storage
from tests.support.hook import environment

SCRIPT = Path(__file__).with_name("planted_hangs.py")
SECONDS = 2  # of the shortest stop to report
PATIENCE = 120  # seconds to wait for a record, on a busy machine
WAITS_FOR = {
    "lock": "", "two_locks": "", "sleep": "", "polled": "", "file_lock": "", "pipe": "", "silent_server": "",
    "empty_queue": "a queue", "full_queue": "a queue", "join": "a lock or a thread", "child": "a child process",
    "worker_sleeps": "a loader's worker", "worker_stopped": "a loader's worker",
}  # fmt: skip
SAMPLE = ("empty_queue", "worker_stopped")  # the others take minutes together


def start(kind: str, profile: Path, ranks: int = 1) -> list[subprocess.Popen]:
    """Start the script's processes."""
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}})
    variables = {
        "SM_PROFILER_CONFIG": config, "SM_PROFILER_HANG_SECONDS": str(SECONDS), "HANG_STORE": str(profile.parent / "store"), JOB.name: "hangs",
    }  # fmt: skip
    command = [sys.executable, "-m", "sm_profiler.hook.launch", str(SCRIPT), kind]
    return [
        subprocess.Popen(
            command, env=environment(**variables, **({"RANK": str(rank)} if ranks > 1 else {})), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def kill(processes: list[subprocess.Popen]) -> None:
    """End processes and their children as a scheduler does."""
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        process.wait()


def records(profile: Path) -> list[dict]:
    """The arguments of the hang events in finished files."""
    return [
        event["args"]
        for path in sorted(profile.rglob("*_pythontimeline.json"))
        for event in json.loads(path.read_text())
        if event["name"] == "hang"
    ]


def hang(kind: str, profile: Path, ranks: int = 1, expected: int = 1) -> None:
    """Run the script until processes have recorded a hang, twice if there are ranks, then kill it."""
    processes = start(kind, profile, ranks)
    try:
        end = time.monotonic() + PATIENCE
        while (
            sum(count >= min(ranks, 2) for count in Counter(one["pid"] for one in records(profile)).values()) < expected
        ):
            assert time.monotonic() < end, f"{kind}: no record of a hang"
            time.sleep(0.2)
    finally:
        kill(processes)
    recover_traces(profile)


def verdict(profile: Path) -> dict:
    """Return the verdict of the report."""
    return json.loads(to_json(build_report(ProfileSource(open_storage(str(profile))))))["verdict"]


def line_of(kind: str) -> int:
    lines = SCRIPT.read_text().splitlines()
    return next(
        n for n, line in enumerate(lines, 1) if "# hangs:" in line and kind in line.partition("# hangs:")[2].split()
    )


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "kind", [kind if kind in SAMPLE else pytest.param(kind, marks=pytest.mark.long) for kind in WAITS_FOR]
)
def test_the_verdict_names_the_line_of_a_hang(kind, tmp_path):
    profile = tmp_path / "profile"
    hang(kind, profile)
    found = verdict(profile)
    assert found["class"] == "HANG", found["headline"]
    place = found["where"][0]
    assert (Path(place["file"]).name, place["line"]) == (SCRIPT.name, line_of(kind))
    assert (f"waiting for {WAITS_FOR[kind]}" if WAITS_FOR[kind] else "waiting for") in found[
        "headline"
    ] or not WAITS_FOR[kind]
    if kind == "worker_stopped":
        (record, *_) = records(profile)
        assert "T" in {child["state"] for child in record["children"]}  # stopped


@pytest.mark.long
def test_the_verdict_names_the_thread_that_died(tmp_path):
    profile = tmp_path / "profile"
    hang("dead_producer", profile)
    found = json.loads(to_json(build_report(ProfileSource(open_storage(str(profile))))))
    line = next(n for n, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "# raises: dead_producer" in text)
    died = {
        "thread": "producer",
        "error": "ValueError: record 7 is damaged: token='***'",
        "where": f"{SCRIPT.name}:{line}",
    }
    (dead,) = found["hang"]["dead_threads"]
    assert dead.items() >= died.items()
    assert (
        f"thread producer had ended with an exception: {died['error']} ({died['where']})."
        in found["verdict"]["headline"]
    )


def test_a_script_sees_the_exceptions_of_its_threads_as_before(monkeypatch):
    seen, error, now = [], ValueError("broken"), [100.0]
    monkeypatch.setattr(threading, "excepthook", own := lambda args: seen.append((args.exc_value, args.thread)))
    recorded = []
    dead = DeadThreads(clock=lambda: now[0], on_end=recorded.append)
    dead.install()

    def run(raised):
        def fail():
            raise raised

        thread = threading.Thread(target=fail, name="worker")
        thread.start()
        thread.join()
        return thread

    threads = [run(error), run(SystemExit(3))]  # one that leaves by sys.exit() has not failed
    now[0] += 2.5
    (found,) = dead.latest()
    assert (found.name, found.error, found.ago) == ("worker", "ValueError: broken", 2.5)
    assert found.where.startswith("test_hook_hangs.py:")
    assert [one.error for one in recorded] == ["ValueError: broken"]
    assert [one for one, _ in seen] == [error, seen[1][0]]
    assert [one for _, one in seen] == threads
    dead.remove()
    assert threading.excepthook is own


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "expected", "rank", "text"),
    [
        ("rank_exits", 1, "0", "algo-1-1 ended"),
        ("rank_sleeps", 2, "1", "1 other waits for it"),
        ("rank_skips", 2, "", "waited for each other"),
    ],
)
def test_the_verdict_names_the_rank_that_is_elsewhere(kind, expected, rank, text, tmp_path):
    profile = tmp_path / "profile"
    hang(kind, profile, ranks=2, expected=expected)
    found = verdict(profile)
    assert found["class"] == "HANG", found["headline"]
    assert text in found["headline"]
    assert found["where"][0]["rank"].endswith(rank)
    assert line_of(kind) in {place["line"] for place in found["where"]}


def test_a_rank_that_never_joins_is_named_before_the_first_step(tmp_path):
    profile = tmp_path / "profile"
    hang("joining", profile, ranks=2, expected=2)
    report = json.loads(to_json(build_report(ProfileSource(open_storage(str(profile))))))
    assert report["verdict"]["class"] == "HANG", report["verdict"]["headline"]
    assert "before its first step; 1 other waits for it" in report["verdict"]["headline"]
    found = report["hang"]
    assert (found["ranks"], found["kind"], found["before_first_step"]) == (["algo-1-1"], "rank_elsewhere", True)
    assert found["where"][0]["line"] == line_of("joining")
    assert {stack["rank"] for stack in found["stacks"]} == {"algo-1-0", "algo-1-1"}


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        "finishing",
        "preparing",
        pytest.param("debugger", marks=pytest.mark.long),
        pytest.param("slow_evaluation", marks=pytest.mark.long),
    ],
)
def test_a_training_that_goes_on_or_ends_has_no_hang(kind, tmp_path):
    profile = tmp_path / "profile"
    (process,) = start(kind, profile)
    assert process.wait(PATIENCE) == 0
    found = records(profile)
    if kind in {"debugger", "preparing"}:
        assert not found
    else:
        assert found[-1]["state"] == {"finishing": "ended", "slow_evaluation": "resumed"}[kind]
    assert verdict(profile)["class"] != "HANG"


class Beats:
    """A watch before the first step whose main thread is a thread that waits; time, work and place are set by the test."""

    def __init__(self):
        self.now, self.work, self.set_up, self.written = 1000.0, Work(), True, []
        self.frame = None
        self.tracker = SimpleNamespace(
            progress=(-1, 0), global_step=-1, latest_number=-1, train_number=-1, rest=None, is_open=False
        )
        self.lines = []
        self.guard = SimpleNamespace(warn=self.lines.append)
        self.adapter = SimpleNamespace(is_set_up=lambda: self.set_up, training_thread=lambda: None)
        self.adapters = [self.adapter]
        self.timebase = Timebase()
        self.recorder = SimpleNamespace(writer=SimpleNamespace(finish=None))
        self.watch = HangWatch(
            self, clock=lambda: self.now, work=lambda: self.work,
            frames=lambda: {threading.main_thread().ident: self.frame},
        )  # fmt: skip

    def is_helper(self):
        return False

    def start_recording(self, ago):
        assert ago >= 0

    def later(self, task):
        pass

    def append_event(self, event):
        self.written.append(json.loads(event.args))

    def look(self, seconds, *, cpu=0.0, transferred=0.0):
        for _ in range(int(seconds / 2)):
            self.now += 2.0
            self.work = Work(self.work.cpu + 2 * cpu, self.work.transferred + 2 * transferred)
            self.watch.beat()


def names(frame):
    """Return the functions of a stack, the innermost first."""
    return [one.f_code.co_name for one, _ in traceback.walk_stack(frame)]


@pytest.fixture
def beats():
    """Yield a watch whose main thread waits for an event at a line of this file."""
    found, done = Beats(), threading.Event()

    def wait_for_it():
        done.wait()

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    while not (frame := sys._current_frames().get(thread.ident)) or names(frame)[:2] != ["wait", "wait"]:
        pass
    found.frame = frame
    yield found
    done.set()
    thread.join()


def test_a_wait_before_the_first_step_is_recorded_once_it_is_long(beats):
    beats.look(118)
    assert not beats.written
    beats.look(6)
    (record,) = beats.written
    assert (record["state"], record["same"]) == ("hanging", True)
    assert "step_num" not in record
    (line,) = beats.lines
    assert "has waited at test_hook_hangs.py:" in line
    assert "in wait_for_it for 2 min before the first step" in line
    beats.look(120)
    assert len(beats.written) == 2
    beats.tracker.progress, beats.tracker.global_step = (0, 5), 0
    beats.look(2)
    assert beats.written[-1]["state"] == "resumed"


@pytest.mark.first(1)
@pytest.mark.parametrize("busy", [{"cpu": 0.05}, {"transferred": 200_000.0}])
def test_a_process_that_works_before_its_first_step_is_no_hang(beats, busy):
    beats.look(600, **busy)
    assert not beats.written
    beats.look(140)  # until it waits
    assert len(beats.written) == 1


def test_a_process_that_builds_no_training_is_no_hang(beats):
    beats.set_up = False
    beats.look(600)
    assert not beats.written


def test_libraries_alone_wait_for_anything(beats):
    while beats.frame.f_code.co_name != "run":
        beats.frame = beats.frame.f_back
    beats.look(600)
    assert not beats.written


def test_a_collective_that_asks_again_and_again_waits(beats, monkeypatch):
    monkeypatch.setattr("sm_profiler.hook.hang.IN_COLLECTIVE", ("threading",))
    beats.look(126, cpu=1.0)
    assert len(beats.written) == 1


def test_what_children_do_is_work():
    before = work_done()
    busy = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as child:
        child.stdout.read(1)
        assert work_done().since(before).cpu > 0.25
        child.kill()
