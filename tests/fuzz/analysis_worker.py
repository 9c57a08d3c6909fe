"""Worker of test_fuzz_analysis.py: opens damaged profiles through the notebook API, in a process with limited memory.

    python analysis_worker.py BASE FIRST COUNT

BASE is a folder of intact profiles, FIRST the seed of the first input. Writes one line per input to standard output:
`start SEED`, and below it `ok`, `limit TEXT` or a traceback as one JSON string.
"""

# ruff: noqa: T201 - the protocol with the test is its output
import contextlib
import io
import json
import logging
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from peak_memory import peak_bytes

from sm_profiler import analysis
from sm_profiler.analysis import parsers, python_stats
from sm_profiler.analysis.times import TimeUnits
from sm_profiler.errors import ConfigError, ProfilerError, SourceError

MEMORY_BYTES = 6 << 30  # of address space; torch is not loaded
PEAK_BYTES = 1200 << 20  # resident
CPU_SECONDS = 10.0

TOKENS = [
    b"null", b"true", b"-1", b"0", b"1e400", b"-1e400", b"NaN", b"Infinity", b"9" * 30, b"9" * 310, b"-" + b"9" * 20, b"1.5", b'""',
    b'"\\udc80"', b'"\\u0000"', '"²"'.encode(), b'"\x1b[2J"', b"[]", b"{}", b"[[[[[[[[", b"}}}}", b'{"a":' * 50, b'"x' * 50, b"\xff\xfe", b"\0" * 8,
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"253402300800000000", b"1700000000000000",
]  # fmt: skip
NAMES = [
    "²", "9" * 100, "1e9", "-1", "a\nb", "\x1b[2J", "x y", "~", "%s%n", "名前", "\udc80\udcff", "'; DROP", "algo-²", "0_0_0_0", ".hidden", "con",
    "train-9-stepstart-9_train-9-stepend-9", "2023111499", "99999999999999999_0-algo-1_pythontimeline.json",
    "999999999999999999.algo-1.json", "0.algo-1.json", "²_0-algo-1_model_timeline.json", "1_²_pythontimeline.json",
]  # fmt: skip
TIMES = [0, -1, 1, 1.7e15, 1_700_000_010_000_000, 2**63, -(2**63), 2**200, math.inf, -math.inf, math.nan, 1e308]
TEXTS = [
    "",
    "[",
    "(?",
    ".*",
    "²",
    "\udc80",
    "cpu",
    "Step:ModeKeys.TRAIN",
    "a" * 10_000,
    "2023-11-14T22:13:20:008444",
    "9999-99-99T",
]


# errors of an argument that is not a time; the data must not cause them
BAD_TIMES = (ProfilerError, OverflowError, ValueError)


class LimitError(Exception):
    """An input takes too long."""


def damage_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return a mutation of the contents of a file."""
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        at, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        token = draw.choice(TOKENS)
        kind = draw.randrange(8)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + token + data[at:]
        elif kind == 2:
            data = data[:at] + data[end:]
        elif kind == 3:
            data = data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
        elif kind == 4:
            data = data[:end] + data[at : at + 2000] + data[end:]
        elif kind == 5:
            data = replace_number(draw, data, token)
        elif kind == 6:
            data = replace_text(draw, data, token)
        else:
            data = data[:at] + draw.randbytes(draw.randrange(20)) + data[end:]
    return data


def replace_number(draw: random.Random, data: bytes, token: bytes) -> bytes:
    """Replace the value of a random JSON key."""
    places = [at for at, byte in enumerate(data[:200_000]) if byte == ord(":")]
    if not places:
        return data
    at = draw.choice(places) + 1
    end = at
    while end < len(data) and data[end] not in b",}\n]":
        end += 1
    return data[:at] + token + data[end:]


def replace_text(draw: random.Random, data: bytes, token: bytes) -> bytes:
    """Replace all occurrences of a random byte string of the file."""
    at = draw.randrange(len(data) + 1)
    piece = data[at : at + draw.randrange(1, 12)]
    return data.replace(piece, token, 50) if piece else data


def damage_names(draw: random.Random, root: Path) -> None:
    """Give files and folders hostile names, or turn them into other kinds of files."""
    paths = sorted(root.rglob("*"))
    for path in draw.sample(paths, min(len(paths), draw.choice((1, 2, 4)))):
        if not path.exists() or path.is_symlink():
            continue
        name = draw.choice(NAMES)
        if draw.random() < 0.5:
            name = path.name.replace(draw.choice(path.name.split("_")) or "x", name)
        with contextlib.suppress(OSError):
            kind = draw.randrange(8)
            if kind == 0 and path.is_file():
                path.unlink()
                path.mkdir()
            elif kind == 1:
                (path.parent / f"{name}.link").symlink_to(path)
            elif kind == 2:
                os.mkfifo(path.parent / name)
            elif kind == 3 and path.is_file():
                shutil.copy(path, path.parent / name)
            else:
                path.rename(path.parent / name)


def use(call, allowed, *arguments, **named):
    """Call a function; return None if it reports an error of the user."""
    try:
        return call(*arguments, **named)
    except allowed:
        return None


def exercise(draw: random.Random, root: Path) -> None:
    """Go through the notebook API with one profile."""
    frame = use(analysis.PandasFrame, SourceError, str(root))
    if frame is not None:
        system, framework = read_frames(draw, frame)
        read_parts(draw, frame, list(framework["start_time"].head(4)))
        compute_statistics(frame, system, framework)
        merge_timelines(draw, root)
        if draw.random() < 0.1:
            draw_charts(root)
    for kind in (analysis.cProfileAnalysis, analysis.PyinstrumentAnalysis):
        read_statistics(draw, kind(str(root)))
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    if files:
        use(parse_alone, SourceError, draw.choice(files))


def read_frames(draw: random.Random, frame):
    """Read whole frames; return both."""
    system, framework = frame.get_all_system_metrics(), frame.get_all_framework_metrics()
    assert list(system.columns)[:2] == ["timestamp", "timestamp_us"]
    for table in (system, framework):
        table.head(3).to_string()
    latest = frame.get_latest_data()
    assert len(latest[0]) <= len(system)  # it waits for a damaged file that is young enough to be incomplete
    assert len(latest[1]) <= len(framework)
    use(frame.get_all_dataloader_metrics, ConfigError, [draw.choice(TEXTS)])
    frame.get_all_framework_metrics([draw.choice(TEXTS)])
    if draw.random() < 0.2:
        frame.to_arrow()
    return system, framework


def read_parts(draw: random.Random, frame, times) -> None:
    """Read ranges of time and steps."""
    frame.get_profiler_data_by_step(0, draw.choice((0, 3, 10**9)))
    use(frame.get_profiler_data_by_time, BAD_TIMES, draw.choice(TIMES), draw.choice(TIMES))
    times += [draw.choice(TEXTS)] * draw.randrange(2)
    use(frame.get_framework_metrics_by_timesteps, SourceError, times)
    use(frame.get_framework_metrics_by_begin_and_end_timesteps, SourceError, times, times)
    for reader in (frame.system_metrics_reader, frame.framework_metrics_reader):
        reader.get_events(0, 2e15)
        reader.get_events_by_step(0, 2)
        use(reader.get_events, BAD_TIMES, draw.choice(TIMES), draw.choice(TIMES), draw.choice(list(TimeUnits)))


def compute_statistics(frame, system, framework) -> None:
    """Compute the statistics of a job and of its data loading."""
    statistics = analysis.PandasFrameAnalysis(system, framework)
    use(statistics.get_job_statistics, SourceError)
    for by in analysis.StatsBy:
        statistics.get_step_statistics(by)
    statistics.get_utilization_stats(by=analysis.StatsBy.TRAINING_PHASE)
    statistics.get_device_usage_stats()
    loading = analysis.PT_dataloader_analysis(frame)
    loading.analyze_dataloaderIter_initialization()
    loading.analyze_dataloaderWorkers()
    loading.analyze_dataloader_getnext()
    loading.analyze_batchtime()


def merge_timelines(draw: random.Random, root: Path) -> None:
    """Merge timelines, which must be JSON."""
    timeline = analysis.MergedTimeline(str(root), output_directory=str(root.parent / "out"))
    path = use(timeline.merge_timeline, SourceError, 0, draw.choice((2e15, 1.70000001e15)))
    if path is not None:
        json.loads(Path(path).read_bytes(), parse_constant=int)  # NaN is not JSON
    use(timeline.merge_timeline, BAD_TIMES, draw.choice(TIMES), draw.choice(TIMES), draw.choice(("time", "step", "x")))


def draw_charts(root: Path) -> None:
    """Draw all charts and save one."""
    for chart in (analysis.StepTimelineChart, analysis.Heatmap, analysis.TimelineCharts):
        drawn = use(chart, SourceError, str(root))
        if drawn is not None:
            use(drawn.save, SourceError, root.parent / "out/chart.html")
    for histogram in (analysis.MetricsHistogram(str(root)), analysis.StepHistogram(str(root))):
        histogram.plot()


def read_statistics(draw: random.Random, profiles) -> None:
    """Read the statistics of a Python profiler."""
    profiles.list_profile_stats()
    for node in profiles.list_available_node_ids():
        use(profiles.fetch_profile_stats_by_step, SourceError, 0, 10**6, node_id=node)
        found = use(profiles.fetch_profile_stats_by_time, SourceError, 0, draw.choice((1e10, math.inf)), node)
        if isinstance(found, python_stats.cProfileStats):
            for by in python_stats.Metrics:
                found.print_top_n_functions(by, 5)
            found.get_function_stats()
    if isinstance(profiles, analysis.cProfileAnalysis):
        use(profiles.fetch_profile_stats_by_job_phase, SourceError)


def parse_alone(path: Path) -> None:
    """Read a file with the parser of single files that fits its name."""
    kinds = [parsers.SMProfilerEvents, parsers.HorovodProfilerEvents, parsers.TensorboardProfilerEvents]
    parser = parsers.SystemProfilerEventParser() if "/system/" in str(path) else kinds[len(path.name) % 3]()
    parser.read_events_from_file(str(path))
    parser.get_all_events()


def one(base: Path, seed: int) -> None:
    """Damage a copy of a profile and read it."""
    draw = random.Random(seed)  # repeatable
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        root = Path(folder, "profile")
        shutil.copytree(draw.choice(sorted(base.iterdir())), root, symlinks=True)
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
        for path in draw.sample(files, draw.choice((1, 1, 2, min(4, len(files))))):
            path.write_bytes(damage_bytes(draw, path.read_bytes()))
        if draw.random() < 0.5:
            damage_names(draw, root)
        os.environ["SM_PROFILER_CACHE"] = str(Path(folder, "cache"))
        # what notebooks print must be printable; a strict encoder shows whether it is
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
        with contextlib.redirect_stdout(printed):
            exercise(draw, root)


def main() -> None:
    base, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("error")
    logging.disable()

    def late(*_):
        raise LimitError

    signal.signal(signal.SIGALRM, late)
    for seed in range(first, first + count):
        print(f"start {seed}", flush=True)
        begin = time.process_time()
        signal.alarm(60)
        try:
            one(base, seed)
        except Exception:
            print(json.dumps(traceback.format_exc()), flush=True)
            continue
        finally:
            signal.alarm(0)
        spent, peak = time.process_time() - begin, peak_bytes()
        if seed > first and spent > CPU_SECONDS:  # the first input loads pandas
            print(f"limit {spent:.1f} s", flush=True)
        elif peak > PEAK_BYTES:
            print(f"limit {peak >> 20} MB", flush=True)
            return
        else:
            print("ok", flush=True)


if __name__ == "__main__":
    main()
