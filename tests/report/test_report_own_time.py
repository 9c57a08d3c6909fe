"""The profiler's own time is no part of the loop; phases that the script declares are parts of it."""

import html

import attrs
import pytest

from sm_profiler.diagnosis.profile.ledger import totals_of
from sm_profiler.formats import event_names
from sm_profiler.render.page import render_html
from sm_profiler.render.view import shares
from sm_profiler.report import Class, terminal_summary
from tests.support.reports import metrics_of, report_from, training, verdict_of

NODE = "algo-1-0"


def stretched_by(rows, extra, at, *, phase="Forward", every=1):
    """Return a loop in which `extra` seconds of something ran inside a phase or, after Step, behind each step."""
    made, shift, spans = [], 0.0, []
    for row in rows:
        name, step = row[0], row[5]
        hit = name.startswith(phase) and step % every == 0
        inside = hit and not name.startswith("Step")
        made.append((row[0], row[1], row[2] + shift, row[3] + extra * inside, *row[4:]))
        if hit:
            spans.append((row[2] + shift + (row[3] * 0.5 if inside else row[3]), extra))
            shift += extra
    return made, [(*at, start, length, NODE, -1) for start, length in spans]


def steps_enclosing(rows):
    """Return the rows with each step's span from its first to its last phase."""
    phases = {}
    for row in rows:
        if row[0] in ("Forward", "Backward(post-forward)", "Optimizer"):
            begin, end = phases.get(row[5], (row[2], 0.0))
            phases[row[5]] = min(begin, row[2]), max(end, row[2] + row[3])
    made = []
    for row in rows:
        if row[0].startswith("Step"):
            begin, end = phases[row[5]]
            made.append((row[0], row[1], begin, end - begin, *row[4:]))
        else:
            made.append(row)
    return made


@pytest.mark.parametrize("phase", ["Forward", "DataLoaderWait", "Step"])
def test_stalls_that_the_profiler_caused_are_no_time_of_the_loop(phase):
    plain = metrics_of(training(200)).ranks[0]
    rows, spans = stretched_by(training(200), 0.05, ("sm_profiler/profiling", "window starts"), phase=phase, every=10)
    own = [(*span, {"kind": "stall"}) for span in spans]
    (rank,) = metrics_of([*steps_enclosing(rows), *own]).ranks
    assert rank.loop == pytest.approx(plain.loop, rel=0.02)
    assert rank.excluded == pytest.approx(20 * 0.05, rel=0.06)
    for key, seconds in plain.seconds.items():
        assert rank.seconds[key] == pytest.approx(seconds, abs=0.06), key
    assert verdict_of([*steps_enclosing(rows), *own]).kind is Class.BALANCED
    kept = metrics_of([*steps_enclosing(rows), *((*span, {"kind": "another"}) for span in spans)]).ranks[0]
    assert kept.loop > 1.3 * plain.loop


def test_collections_of_the_profilers_objects_are_not_the_scripts():
    rows, spans = stretched_by(training(200), 0.02, ("GC", "generation 2"), phase="Step", every=5)
    assert verdict_of([*rows, *spans]).kind is Class.GC_BOUND
    verdict = verdict_of([*rows, *((*span, {"generation": 2, "own": True}) for span in spans)])
    assert (verdict.kind, verdict.also) == (Class.BALANCED, ())


def slowed(factor, *, steps=60, usual=60):
    """Return a loop whose first steps ran in a window that slowed them."""
    slow = training(steps, forward=0.003 * factor, backward=0.005, optimizer=0.001)
    end = slow[-1][2] + slow[-1][3] + 0.0002
    return slow + training(usual, at=end, number=steps), end


@pytest.mark.parametrize("slower", [4.0, None])
def test_steps_in_a_window_that_slowed_them_are_left_out(slower):
    rows, end = slowed(20)
    window = (
        "sm_profiler/profiling",
        "python window",
        1.001,
        end - 1.001,
        NODE,
        -1,
        {"kind": "window", "slower": slower},
    )
    (rank,) = metrics_of([*rows, window]).ranks
    assert (len(rank.iterations), rank.left_out, int(rank.train.sum())) == (59, 60, 120)
    assert rank.share("forward") == pytest.approx(0.003 / 0.0102, abs=0.01)
    assert sum(rank.seconds.values()) == pytest.approx(rank.loop, rel=1e-6)
    assert metrics_of([*rows, window]).steps_per_second == pytest.approx(1 / 0.0102, rel=0.03)


@pytest.mark.parametrize(
    ("args", "usual"), [({"kind": "window", "slower": 1.02}, 60), ({"kind": "window", "slower": 4.0}, 10)]
)
def test_steps_in_a_window_count_if_it_is_cheap_or_the_others_do_not_suffice(args, usual):
    rows, end = slowed(20, usual=usual)
    (rank,) = metrics_of([*rows, ("sm_profiler/profiling", "window", 1.0, end - 1.0, NODE, -1, args)]).ranks
    assert rank.left_out == 0
    assert len(rank.iterations) == 59 + usual


def loop_that_compiles(again, *, steps=400, window=20):
    """Return a loop that compiles for 0.3 s in some steps, and whose first steps ran in a slow window; and that share."""
    rows, now, spent = [], 1.0, 0.0
    for step in range(steps):
        forward = 0.02 if step < window else 0.002
        if again(step):
            args = {"again": True, "file": "train.py", "line": 3, "function": "f"}
            rows.append(("sm_profiler/compile", "f", now + 0.001, 0.3, NODE, step, args))
            forward, spent = forward + 0.3, spent + 0.3
        rows += training(1, forward=forward, backward=0.002, at=now, number=step)
        now += forward + 0.0052
        if step == window - 1:
            end = now
    rows.append(
        ("sm_profiler/profiling", "python window", 1.0, end - 1.001, NODE, -1, {"kind": "window", "slower": 8.0})
    )
    return rows, spent / (spent + steps * 0.0072)


@pytest.mark.parametrize(
    "again",
    [
        lambda step: 1 < step < 30,
        lambda step: step % 10 == 5,
        lambda step: step in {50, 60, 70, 80},
        lambda step: 0 < step < 5,
    ],
    ids=["mostly in the window", "steadily", "after the window", "only in the window"],
)
def test_what_happened_in_a_slow_window_counts_without_the_windows_own_cost(again):
    rows, share = loop_that_compiles(again)
    verdict = verdict_of(rows)
    (found,) = [one for one in (verdict.main, *verdict.also) if one.kind is Class.RECOMPILATION]
    assert found.share_of_time == pytest.approx(share, abs=0.05)


def beside(rows, *spans):
    """Return a loop beside which the results of a window are written."""
    name, kind = "python window is written", {"kind": "background"}
    return [*rows, *(("sm_profiler/profiling", name, start, end - start, NODE, -1, kind) for start, end in spans)]


def test_steps_beside_which_results_are_written_are_left_out_if_they_are_longer():
    rows, end = slowed(20)
    (rank,) = metrics_of(beside(rows, (1.001, end - 0.001))).ranks
    assert (len(rank.iterations), rank.left_out) == (59, 60)
    even, end = slowed(1)
    (rank,) = metrics_of(beside(even, (1.001, end - 0.001))).ranks
    assert rank.left_out == 0


@pytest.mark.parametrize(("share", "left_out"), [(1.0, 60), (0.5, 60), (0.02, 0)])
def test_steps_beside_a_process_that_hardly_had_a_core_are_kept(share, left_out):
    """On a busy machine, a conversion of 0.1 s of CPU time lasted 5.6 s, and a fifth of the training was left out."""
    rows, end = slowed(20)
    length = end - 1.002
    args = {"kind": "background", "cpu_s": share * length}
    own = ("sm_profiler/profiling", "detailed window is converted", 1.001, length, NODE, -1, args)
    (rank,) = metrics_of([*rows, own]).ranks
    assert rank.left_out == left_out


def test_a_step_that_the_profiler_took_as_a_whole_is_no_step_of_no_length():
    rows = training(100)
    start, length = next((row[2], row[3]) for row in rows if row[0].startswith("Step") and row[5] == 50)
    own = ("sm_profiler/profiling", "objects are counted", start - 0.0012, length + 0.0012, NODE, -1, {"kind": "stall"})
    (rank,) = metrics_of(sorted([*rows, own], key=lambda row: row[2])).ranks
    assert rank.iterations.length.min() > 0.009
    assert 50 not in rank.iterations.index


def test_how_much_is_left_out_is_shown():
    rows, end = slowed(20)
    report = report_from(beside(rows, (1.001, end - 0.001)))
    text = "Left out: 4.03 s of 4.64 s (60 of 120 steps) in or beside the profiler's windows, which may disturb them"
    assert text in " ".join(terminal_summary(report, width=100).split())
    assert html.unescape(render_html(report)).count(text) == 2  # beside the verdict, and with the ledger
    assert report_from(rows).left_out_alarm is None


def test_steps_that_vary_by_themselves_are_not_left_out_for_work_beside_them():
    rows, now = [], 1.0
    for step in range(200):  # one of ten takes three times as long, beside the writing as elsewhere
        one = training(1, forward=0.03 if step % 10 == 5 else 0.003, at=now, number=step)
        rows, now = rows + one, one[-1][2] + one[-1][3] + 0.0002
    (rank,) = metrics_of(beside(rows, (1.3, 2.0))).ranks
    assert rank.left_out == 0


def test_the_profilers_own_time_is_not_what_slows_steps_beside_its_work():
    even, end = slowed(1)
    own = ("sm_profiler/profiling", "objects are counted", 1.002, 0.5, NODE, -1, {"kind": "stall"})
    rows = [
        own if number == 1 else (*row[:2], row[2] + 0.5, *row[3:]) if number > 1 else row
        for number, row in enumerate(even)
    ]
    (rank,) = metrics_of(beside(rows, (1.001, end + 0.4))).ranks
    assert rank.left_out == 0


def test_a_long_step_is_not_left_out_for_a_moment_of_writing():
    rows = training(300, every=20, stall=0.5)
    starts = [row[2] for row in rows if row[0].startswith("Step") and row[5] % 20 == 0 and row[5]]
    (rank,) = metrics_of(beside(rows, *((start + 0.1, start + 0.12) for start in starts))).ranks
    assert rank.left_out == 0


def test_periods_are_counted_over_the_steps_that_were_left_out():
    rows = training(300, every=20, stall=0.1)
    begin = next(row[2] for row in rows if row[5] == 90)
    end = next(row[2] for row in rows if row[5] == 97)
    window = ("sm_profiler/profiling", "window", begin, end - begin, NODE, -1, {"kind": "window", "slower": 3.0})
    verdict = verdict_of([*rows, window])
    assert verdict.main.headline.startswith("Every 20 steps")


def declared(rows, extra, *, phase="Step", every=1, name="augment"):
    rows, spans = stretched_by(rows, extra, (name, name), phase=phase, every=every)
    return [*steps_enclosing(rows), *((*span, {"declared": True}) for span in spans)]


def test_a_phase_of_the_script_is_a_slice_and_a_finding_with_its_name():
    report = report_from(declared(training(200), 0.02))
    (rank,) = report.metrics.ranks
    assert rank.declared == {"augment": pytest.approx(199 * 0.02, rel=0.01)}
    assert rank.share("outside") < 0.02
    assert report.verdict.kind is Class.USER_PHASE
    assert "“augment” takes 66 %" in report.verdict.main.headline
    assert report.verdict.also == ()
    assert '<span class="what">Augment</span> <b>66 %</b>' in render_html(report)
    assert "augment 66 %" in terminal_summary(report, width=100)


def steps_only(*spans):
    """Return steps of 10 ms that a script marks itself, each with these declared spans: name, start in it, seconds."""
    rows = []
    for number in range(200):
        start = 1.0 + 0.01 * number
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", start, 0.0099, NODE, number))
        rows += [(name, name, start + at, length, NODE, number, {"declared": True}) for name, at, length in spans]
    return rows


def test_a_script_without_a_framework_has_no_forward_pass():
    """A phase of 80 % of each step was shown as 44 %, and the whole step as a forward pass."""
    shown = {each.name: each.share for each in shares(totals_of(metrics_of(steps_only(("decode", 0.0, 0.008)))))}
    assert shown == {"decode": pytest.approx(0.8, abs=0.01), "unseen": pytest.approx(0.2, abs=0.01)}
    assert [each.name for each in shares(totals_of(metrics_of(steps_only())))] == ["unseen"]


def test_a_phase_inside_a_step_is_not_between_its_phases():
    rows = training(200)
    made, shift = [], 0.0
    for row in rows:  # between forward and backward
        made.append((row[0], row[1], row[2] + shift, row[3], *row[4:]))
        if row[0] == "Forward":
            made.append(("loss", "loss", row[2] + row[3] + shift, 0.01, NODE, row[5], {"declared": True}))
            shift += 0.01
    (rank,) = metrics_of(steps_enclosing(made)).ranks
    assert rank.seconds["between"] == pytest.approx(0, abs=1e-6)
    assert rank.seconds["declared"] == pytest.approx(2.0, rel=0.01)
    assert sum(rank.seconds.values()) == pytest.approx(rank.loop, rel=1e-6)


def test_a_rare_phase_of_the_script_has_its_name_in_the_verdict():
    verdict = verdict_of(declared(training(400), 0.04, every=40, name="save"))
    assert verdict.kind is Class.PERIODIC_STALL
    assert "in the phase “save”" in verdict.main.headline


def test_a_phase_counts_without_what_the_hook_recorded_inside_it():
    rows = training(200)
    around_forward = [
        ("mine", "mine", row[2], row[3] + 0.0001, NODE, -1, {"declared": True}) for row in rows if row[0] == "Forward"
    ]
    (rank,) = metrics_of([*rows, *around_forward]).ranks
    assert rank.seconds["declared"] == pytest.approx(0, abs=0.03)
    whole = [("epoch", "epoch", 0.5, 3.0, NODE, -1, {"declared": True})]
    assert metrics_of([*rows, *whole]).ranks[0].declared == {}


def test_nested_phases_count_once():
    rows, spans = stretched_by(training(200), 0.02, ("outer", "outer"), phase="Step")
    inner = [("inner", "inner", start + 0.005, 0.01, NODE, -1) for *_, start, _, _, _ in spans]
    every = [(*span, {"declared": True}) for span in (*spans, *inner)]
    (rank,) = metrics_of([*rows, *every]).ranks
    assert rank.declared == {name: pytest.approx(199 * 0.01, rel=0.01) for name in ("inner", "outer")}
    assert sum(rank.seconds.values()) == pytest.approx(rank.loop, rel=1e-6)


def test_names_of_phases_are_shown_printable_and_few_have_a_slice():
    rows = declared(training(200), 0.02, name="a\x1b]0;x\x07<b>" + "y" * 90)
    report = report_from(rows)
    assert "\x1b" not in terminal_summary(report)
    assert "<b>y" not in render_html(report)
    (rank,) = report.metrics.ranks
    many = attrs.evolve(rank, declared={f"phase {number}": 0.1 for number in range(40)})
    shown = [each.name for each in shares(totals_of(attrs.evolve(report.metrics, ranks=(many,))))]
    assert len(shown) == 9
    assert shown[-1].endswith(" others")


def test_a_high_profiling_cost_is_an_alarm():
    """The page showed 30 % like any other number, and the terminal did not show it at all."""
    rows = training(200)
    end = rows[-1][2] + rows[-1][3]
    alarms = []
    for cost in (0.3, 0.01):
        own = (event_names.OVERHEAD, "overhead", end - cost * (end - 1.0), cost * (end - 1.0), NODE, -1, {"steps": 200})
        report = report_from([*rows, own])
        alarms.append((report.profiling_alarm or "", terminal_summary(report, width=100), render_html(report)))
    (alarm, terminal, page), (none, quiet, calm) = alarms
    assert "30 % of the training loop" in alarm
    assert "windows" not in alarm  # there were none
    assert "Profiling cost 30 %" in terminal
    assert alarm in html.unescape(page)
    assert none == ""
    assert "Profiling cost" not in quiet
    assert 'class="alarm"' not in calm


@pytest.mark.parametrize(("kind", "advised"), [("stall", False), ("background", False), ("window", True)])
def test_windows_are_to_be_left_out_only_if_there_were_some(kind, advised):
    """Every profile has moments that only the profiler caused, such as the start of its stack samples."""
    rows = training(200)
    end = rows[-1][2] + rows[-1][3]
    loop = end - 1.0
    cost = (
        event_names.OVERHEAD,
        "overhead",
        end - 0.2 * loop,
        0.2 * loop,
        NODE,
        -1,
        {"steps": 200, "windows_us": 0.15e6 * loop},
    )
    own = (event_names.PROFILING, "began", 1.5, 0.02, NODE, -1, {"kind": kind})
    report = report_from([*rows, cost, own])
    alarm = report.profiling_alarm
    assert alarm.startswith("Profiling cost")
    assert ("windows" in alarm) == advised
    parts = ": 15 % for its windows, and 5 % for the rest"
    assert (parts in alarm, report.profiling_cost.endswith(parts)) == (advised, advised)
    assert ("15 % for its windows" in render_html(report)) == advised


def test_the_cost_of_a_few_steps_is_not_stated_as_that_of_a_longer_run():
    """It was stated as if it were; later it was unknown, although it had been measured."""
    rows = training(30)
    own = (event_names.OVERHEAD, "overhead", 1.0, 0.6, NODE, -1, {"steps": 30})
    report = report_from([*rows, own])
    assert "too short to show the share in a longer one" in report.profiling_alarm
    assert report.profiling_cost == (
        "196 % of the training loop, measured by the hook itself; the run is too short to show the share in a longer one"
    )
    assert "a run that is too short" in render_html(report)
    assert "too short" not in report_from(rows).profiling_cost


def test_the_cost_of_a_run_of_which_most_is_left_out_is_not_that_of_a_longer_run():
    rows, end = slowed(20)
    own = (event_names.OVERHEAD, "overhead", end - 0.25, 0.25, NODE, -1, {"steps": 120})
    report = report_from([*beside(rows, (1.001, end - 0.001)), own])
    assert "Profiling cost 5.4 % of the training loop. The run is too short" in report.profiling_alarm
