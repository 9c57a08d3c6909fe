"""The life cycle of a session and its collectors, with an adapter of no framework."""

import gc
import json
import os
import threading
import time

import pytest

from sm_profiler.hook import entry
from sm_profiler.hook.adapter import FrameworkAdapter, confined
from sm_profiler.hook.session import MAX_THREAD_ENDS, Session
from sm_profiler.hook.settings import ConfigText
from tests.support.profiles import events
from tests.support.sessions import Adapter, Recording, profile

FIVE = ("Detailed", "Dataloader", "Python", "Horovod", "SMDataParallel")

DEFAULT = '{"DefaultProfiling": true, }'  # as the SDK writes it


@pytest.fixture
def session(tmp_path):
    session = Session(profile(tmp_path, Detailed={"StartStep": 1, "NumSteps": 1}), Adapter)
    yield session
    session.end()


def step(session, start: int = 1_000_000) -> None:
    tracker = session.tracker
    tracker.begin_step(start, gradients=True)
    tracker.forward_begins(7, start + 10, gradients=True)
    tracker.forward_ends("Net", start + 20)
    tracker.end_step(start + 30)


def test_an_adapter_that_fails_is_taken_out_and_the_others_record_on(session):
    class Other(Adapter):
        framework = "other"
        removed = 0

        def remove(self):
            self.removed += 1

        def complete(self, records):
            raise AssertionError("it was asked again")

    other = Other(session)
    session.arm(other)
    session.adapter_failed(other, TypeError("unexpected"))
    step(session)
    assert (other.removed, other in session.adapters, session.quiet) == (1, False, False)
    session.close()
    assert session.describe()["collectors"]["other"] == "failed: TypeError: unexpected"
    assert any(event["phase"] == "Forward" for event in events(session.root))


def test_the_framework_that_trains_profiles_in_detail_however_late_its_window_is_known(session):
    """Keras, which has none until its backend is loaded, left JAX's in place, and no operator of TensorFlow was recorded."""
    windows = {name: Recording() for name in ("jax", "tensorflow")}
    for name, collector in windows.items():
        collector.name = f"{name}'s"
    known = []

    class Keras(Adapter):
        framework = "keras"

        def detailed(self):
            return windows["tensorflow"] if known else None

    class Framework(Adapter):
        def detailed(self):
            return windows[self.framework]

    jax, tensorflow = (type(name, (Framework,), {"framework": name})(session) for name in windows)
    session.arm(jax)
    session.arm(Keras(session), first=True)
    known.append(True)
    session.arm(tensorflow)
    session.lead(tensorflow)
    assert [session.has(one.name) for one in windows.values()] == [False, True]


ANSWERS = ("detailed", "rank", "training_thread", "is_helper", "is_set_up", "uses_gpu", "complete")


def failing(name, answer=None):
    """Return an adapter of another package of which one method raises, or returns a text."""

    def method(_self, *_args, **_kwargs):
        if answer is None:
            raise ValueError(name)
        return answer

    return type("Outside", (Adapter,), {"framework": "outside", name: method})


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        *((name, None) for name in (*ANSWERS, "step_ending", "loader_began", "batches_unused")),
        *((name, "text") for name in ANSWERS),
        ("complete", ["text"]),
    ],
)
def test_any_method_of_an_adapter_from_outside_may_fail(session, caplog, name, answer):
    """Most of them ended the whole hook, or raised into the script."""
    adapter = confined(failing(name, answer), session.adapter_failed, session.tracker.release)(session)
    session.arm(adapter)
    session.lead(adapter)
    for start in (1_000_000, 2_000_000):
        step(session, start)
        session.loader_began(5)
        session.batches_unused()
        session.append_span("mine", 10, 20)
        adapter.step_ending(later=False)
        assert (session.is_helper(), adapter.is_set_up()) == (False, False)
        assert session.describe()["pid"] == os.getpid()
    session.close()
    assert (adapter in session.adapters, list(session.guard.failures), session.quiet) == (False, ["outside"], True)
    assert len(caplog.messages) == 1
    assert len([event for event in events(session.root) if event["phase"] == "Step:ModeKeys.TRAIN"]) == 2


@pytest.mark.parametrize("kind", [dict, print, type("Nameless", (FrameworkAdapter,), {}), failing("framework", 5)])
def test_what_is_no_adapter_is_refused(session, kind):
    with pytest.raises(TypeError, match=r"^an adapter (is a class|has the name)"):
        confined(kind, session.adapter_failed, session.tracker.release)


def test_the_steps_of_an_adapter_that_cannot_be_removed_are_found_again(session):
    adapter = confined(failing("remove"), session.adapter_failed, session.tracker.release)(session)
    session.arm(adapter)
    session.tracker.claim("outside")
    session.adapter_failed(adapter, ValueError())
    assert session.tracker.owner == ""


def test_a_collector_lives_from_start_to_exit(session, tmp_path):
    collector = Recording()
    session.add(collector)
    step(session)
    assert collector.life == ["step 0 TRAIN", "start", "forward ends", "step ends"]
    collector.life.clear()
    step(session)
    assert collector.life == ["enter 1", "step 1 TRAIN", "forward ends", "step ends"]
    collector.life.clear()
    session.change_profile(profile(tmp_path))
    step(session)
    session._beat()
    assert collector.life == ["profile of 0 windows", "leave 2", "step 2 TRAIN", "forward ends", "step ends", "beat"]
    collector.life.clear()
    session.close()
    session.close()
    session.end()
    session.end()
    assert collector.life == ["close", "finish", "exit"]


def test_a_configuration_that_is_gone_is_reported_once(session, tmp_path, caplog):
    path = tmp_path / "profilerconfig.json"
    session._source = ConfigText("", path, 0)
    for _ in range(3):
        session._reload_profile()
    path.write_text("{")
    for _ in range(3):
        session._reload_profile()
        session._source = ConfigText("", path, 0)
    path.unlink()
    session._reload_profile()
    assert [record.message.count("changed configuration is ignored") for record in caplog.records] == [1, 1, 1]


def test_an_open_window_is_left_when_the_session_closes(session):
    collector = Recording()
    session.add(collector)
    step(session)
    step(session)
    collector.life.clear()
    session.end()
    assert collector.life == ["leave -1", "close", "finish", "exit"]


@pytest.mark.parametrize("event", ["start", "enter 1", "step 1 TRAIN", "step ends", "forward ends", "leave 2", "beat"])
def test_a_collector_that_fails_is_switched_off_and_the_others_go_on(session, event):
    broken, sound = Recording(event), Recording()
    sound.name = "sound"
    session.add(broken)
    session.add(sound)
    for number in range(4):
        step(session, (number + 1) * 1_000_000)
        session._beat()
    assert session.guard.failures == {"detailed": f"RuntimeError: {event}"}
    at = broken.life.index(event)
    assert broken.life[at + 1 :] == ["failed"]
    assert not session.schedule.windows["detailed"].active
    assert sound.life.count("step ends") == 4
    assert not session.quiet
    session.close()
    assert broken.life[at + 1 :] == ["failed", "finish"]


def test_a_failure_of_the_session_stops_all_collectors(session):
    collector = Recording()
    session.add(collector)
    session.fail(RuntimeError("broken"))
    assert session.quiet
    assert collector.life == ["failed"]


def test_two_collectors_may_react_to_the_same_event(session):
    """There were single slots, which a second collector overwrote."""
    first, second = Recording(), Recording()
    first.name, second.name = "first", "second"
    session.add(first)
    session.add(second)
    step(session)
    assert first.life == second.life == ["step 0 TRAIN", "start", "forward ends", "step ends"]


def test_a_collector_that_is_discarded_is_not_called_again(session):
    collector = Recording()
    session.add(collector)
    session.discard(collector)
    session.discard(collector)
    step(session)
    session.close()
    assert collector.life == []
    assert not session.tracker.reports_forward_ends


def test_a_forked_child_starts_over(session):
    collector = Recording()
    session.add(collector)
    step(session)
    step(session)
    parent = session.recorder
    collector.life.clear()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        step(session)
        os.write(writer, json.dumps([collector.life, session.recorder is not parent]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as file:
        life, has_its_own = json.load(file)
    assert life == ["forked", "step 0 TRAIN", "start", "forward ends", "step ends"]
    assert has_its_own
    assert set(collector.life) <= {"beat"}  # on a busy machine


def test_a_helper_process_has_no_steps(session):
    session._may_be_helper = session.adapter.helper = True
    step(session)
    assert session.quiet
    assert session._recorder is None


def test_garbage_collections_are_watched_only_while_recording(tmp_path, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}}))
    before = list(gc.callbacks)
    session = entry.install().session
    assert gc.callbacks == before
    step(session)
    assert len(gc.callbacks) == len(before) + 1
    entry.uninstall()
    assert gc.callbacks == before


def requested(folder, **windows) -> tuple[Session, dict]:
    session = Session(profile(folder, **windows), Adapter)
    session.add(Recording())
    return session, session.describe()["collectors"]


class OnGpu(Adapter):
    uses: "bool | None" = False

    def uses_gpu(self) -> "bool | None":
        return self.uses


def test_a_process_uses_no_gpu_only_if_none_of_its_frameworks_does_after_a_step(tmp_path):
    session = Session(profile(tmp_path), OnGpu)
    assert session.describe()["uses_gpu"] is None
    step(session)
    step(session)
    assert session.describe()["uses_gpu"] is False
    session.adapters.append(Adapter(session))  # shows nothing
    assert session.describe()["uses_gpu"] is None
    session.adapters[0].uses = True
    assert session.describe()["uses_gpu"] is True


def test_a_collector_that_does_not_exist_is_reported_if_it_was_requested(tmp_path):
    _, states = requested(tmp_path, SMDataParallel={"StartStep": 3, "NumSteps": 1}, Detailed={"StartStep": 1})
    assert states == {"smddp": "unavailable: not available in this version"}


@pytest.mark.parametrize("given", [{"DefaultProfiling": True}, {"StartStep": 5, "NumSteps": 10}])
def test_a_framework_profile_of_all_collectors_is_no_request_for_one_that_does_not_exist(tmp_path, given):
    """The SDK's `FrameworkProfile()` configures all five."""
    _, states = requested(tmp_path, **dict.fromkeys(FIVE, given))
    assert states == {}


def test_the_log_does_not_mention_collectors_that_were_not_requested(tmp_path, monkeypatch, caplog):
    parameters = {"LocalPath": str(tmp_path), **{f"{name}ProfilingConfig": DEFAULT for name in FIVE}}
    del parameters["PythonProfilingConfig"]
    for more, mentioned in (({"PythonProfilingConfig": DEFAULT}, False), ({}, True)):
        caplog.clear()
        monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps({"ProfilingParameters": {**parameters, **more}}))
        entry.install()
        entry.uninstall()
        assert ("smddp" in caplog.text) is mentioned


def test_nothing_accumulates_after_closing(session):
    hook = entry.Hook(session)
    step(session)
    session.close()
    for _ in range(10):
        with hook.phase("mine"):
            pass
        hook.record_trace_events("Mine", "mark")
    assert not session.recorder.records
    assert not session.recorder.events


def test_the_end_of_the_thread_that_trains_completes_the_file_a_few_times(session, monkeypatch):
    step(session)
    completed = []
    monkeypatch.setattr(session.recorder, "complete_file", completed.append)
    for _ in range(MAX_THREAD_ENDS + 5):  # a script with a thread for each step
        session.training_thread_ends()
    assert len(completed) == MAX_THREAD_ENDS


def test_a_step_goes_on_if_another_thread_trains_by_now(session, monkeypatch):
    step(session)
    completed = []
    monkeypatch.setattr(session.recorder, "complete_file", completed.append)
    session.tracker.begin_step(2_000_000, gradients=True)
    earlier = threading.Thread(target=session.training_thread_ends)
    earlier.start()
    earlier.join()
    assert session.tracker.is_open
    assert not completed


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Raises:
    def __str__(self):
        raise Unspeakable

    __float__ = __bool__ = __repr__ = __str__


NOW_S = time.time()


@pytest.mark.parametrize(
    "given",
    [
        {"timestamp": NOW_S * 1e3},
        {"timestamp": time.time_ns()},
        {"timestamp": float("nan")},
        {"timestamp": time.perf_counter() % 1e6},
        {"timestamp": "now"},
        {"timestamp": Raises()},
        {"duration": time.time_ns()},
        {"duration": 1e300},
        {"duration": float("inf")},
        {"duration": -1.0},
        {"training_phase": None},
        {"op_name": ["a"]},
        {"phase": '"start"'},
        {"phase": None},
        {"phase": "M"},
        {"more": Raises()},
        {"more": {("a", "b"): 1}},
    ],
    ids=lambda given: next(iter(given)),
)
def test_an_event_with_an_odd_argument_is_left_out_alone(session, given, caplog):
    hook = entry.Hook(session)
    step(session)
    hook.record_trace_events(**{"training_phase": "Mine", "op_name": "mark", **given})
    hook.record_trace_events(**{"training_phase": "Mine", "op_name": "mark", **given})
    hook.record_trace_events("Mine", "mark", timestamp=time.time(), duration=0.1)
    assert session.describe()["left_out"] == 2
    assert session.guard.failures == {}
    (line,) = caplog.messages
    assert line.startswith("sm-profiler: record_trace_events: ")
    assert session.describe()["collectors"]["user events"].endswith("; such events are left out")
    session.close()
    rows = [event for event in events(session.root) if event["phase"] == "Mine"]
    assert len(rows) == 1


LONG = "x" * 3_000_000


@pytest.mark.parametrize(
    "given",
    [
        {"text": LONG},
        {"rows": list(range(300_000))},
        {"nested": [[LONG], {"a": {"b": [LONG]}}]},
        {"number": 10**4000},
        {"pairs": {str(number): number for number in range(100_000)}},
        {"object": type("Large", (), {"__str__": lambda _: LONG})()},
        {LONG: 1},
        {"op_name": LONG},
        {"training_phase": LONG},
    ],
    ids=lambda given: next(iter(given))[:20],
)
def test_one_event_cannot_become_megabytes(session, given):
    hook = entry.Hook(session)
    step(session)
    hook.record_trace_events(**{"training_phase": "Mine", "op_name": "mark", **given})
    hook.record_trace_events("Mine", "mark", shape=[3, 224, 224], note="kept as it is")
    session.close()
    assert session.describe()["events_cut"] == 1
    assert sum(path.stat().st_size for path in session.root.rglob("*.json")) < 60_000
    rows = [event for event in events(session.root) if event["phase"].startswith(("Mine", "xxx"))]
    assert "\u2026" in json.dumps(rows[0], ensure_ascii=False)
    assert rows[1]["args"] == {"shape": [3, 224, 224], "note": "kept as it is"}


def test_the_name_of_a_phase_is_bounded(session):
    hook = entry.Hook(session)
    step(session)
    with hook.phase(LONG):
        pass
    session.close()
    (row,) = (event for event in events(session.root) if event["phase"].startswith("xxx"))
    assert (len(row["phase"]), session.describe()["events_cut"]) == (201, 1)


def test_numbers_that_json_does_not_have_are_recorded_as_text(session):
    hook = entry.Hook(session)
    step(session)
    hook.record_trace_events("Mine", "mark", loss=float("nan"), losses=[1.5, float("inf")])
    session.close()
    (row,) = (event for event in events(session.root) if event["phase"] == "Mine")
    assert row["args"] == {"loss": "NaN", "losses": [1.5, "Infinity"]}


@pytest.mark.parametrize("trains", [False, True])
def test_phases_of_the_training_thread_are_in_the_loop_and_others_are_counted(session, trains, monkeypatch):
    """Those of another thread than the main one were lost without a word, even if it trained."""
    step(session)

    def work():
        if trains:
            ident = threading.get_ident()
            monkeypatch.setattr(session.adapter, "training_thread", lambda: ident)
        with entry.Hook(session).phase("augment"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert session.describe()["phases_elsewhere"] == (0 if trains else 1)
    with entry.Hook(session).phase("augment"):
        pass
    assert session.elsewhere == 1
    session.close()
    declared = [event["args"].get("declared", False) for event in events(session.root) if event["phase"] == "augment"]
    assert sorted(declared) == [False, True]


@pytest.mark.parametrize("name", [["augment"], None, Raises(), 3])
def test_a_phase_whose_name_is_no_text_runs_unrecorded(session, name):
    hook = entry.Hook(session)
    step(session)
    ran = []
    with hook.phase(name):
        ran.append(name)
    with pytest.raises(KeyError, match="mine"), hook.phase(name):
        raise KeyError("mine")
    assert len(ran) == 1
    assert (session.left_out, session.guard.failures) == (2, {})


def test_a_mode_of_another_kind_is_reported_once(session, caplog):
    hook = entry.Hook(session)
    for mode in ("TRAIN", None, Raises()):
        hook.set_mode(mode)
    assert caplog.messages == ["sm-profiler: set_mode takes a mode such as ModeKeys.TRAIN, not str"]
    assert session.tracker.forced_mode is None


def test_an_error_whose_text_raises_switches_off_its_collector_only(session):
    session.guard.failed("mine", Unspeakable())
    assert session.guard.failures == {"mine": "Unspeakable: "}


def test_a_marked_step_that_raises_is_not_completed(session):
    hook = entry.Hook(session)
    with hook.step():
        pass
    assert session.tracker.completed == 1
    with pytest.raises(ValueError, match="loss"), hook.step():
        raise ValueError("loss")
    assert session.tracker.completed == 1
