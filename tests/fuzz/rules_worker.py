"""Worker of test_fuzz_rules.py: evaluates rules on damaged jobs, in a process with limited memory and CPU time.

    python rules_worker.py engine|runner BASE FIRST COUNT

BASE is a folder of intact jobs, FIRST the seed of the first input. Prints `start SEED` before each input and `failed SEED
REASON` after an input that broke a promise; ends with `done COUNT`.
"""

# ruff: noqa: T201 - the protocol with the test is its output
import gzip
import io
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from peak_memory import peak_bytes

from sm_profiler.cli import main
from sm_profiler.errors import ProfilerError
from sm_profiler.rules import RULES, run_rules
from sm_profiler.source import open_source

ADDRESS_BYTES = 4 << 30
PEAK_BYTES = 700 << 20  # resident
CPU_S = 10.0
STATUSES = {"NoIssuesFound", "IssuesFound", "Error"}
KEYS = ["RuleTriggered", "Violations", "Details", "Datapoints", "RuleParameters"]

TOKENS = [
    b"null", b"true", b"-1", b"0", b"1e400", b"-1e400", b"NaN", b"Infinity", b"1e308", b"-1.7e308", b"1e-320", b"4e18", b"-4e18", b"9" * 30, b"9" * 310, b"-" + b"9" * 20, b"1.5",
    b'""', b'"\\udc80"', b'"\\u0000"', '"²"'.encode(), b'"\x1b[2J"', b"[]", b"{}", b"[[[[[[[[", b"}}}}", b'{"a":' * 50,
    b'"x' * 50, b"\xff\xfe", b"\0" * 8, b"9223372036854775807", b"9223372036854775808", b"18446744073709551616",
    b"253402300800000000", b"1700000000000000", b'"algo-1"', b'"gpu0"', b'"GPUUtilization"', b'"Step:ModeKeys.TRAIN"',
]  # fmt: skip
NAMES = [
    "²", "9" * 100, "1e9", "a b", "\x1b[2J", "%s%n", "名前", "\udc80\udcff", "algo-²", "algo-" + "9" * 30, "algo-0", ".hidden",
    "9" * 17, "0", "²_0-algo-1_pythontimeline.json", "9999999999.algo-1.json", "0.algo-1.json", "training_job_end.ts",
]  # fmt: skip
PARAMETERS = {
    "CPUBottleneck_patience": ["1", "10"], "CPUBottleneck_threshold": ["0", "100"], "IOBottleneck_patience": ["1"],
    "LowGPUUtilization_patience": ["1"], "LowGPUUtilization_window": ["1", "3"], "GPUMemoryIncrease_window": ["1", "2"],
    "GPUMemoryIncrease_patience": ["1"], "GPUMemoryIncrease_increase": ["0.001"], "BatchSize_patience": ["1"],
    "BatchSize_window": ["1"], "BatchSize_cpu_threshold_p95": ["100"], "BatchSize_gpu_threshold_p95": ["100"],
    "BatchSize_gpu_memory_threshold_p95": ["100"], "LoadBalancing_patience": ["1"], "LoadBalancing_threshold": ["0.0001"],
    "StepOutlier_stddev": ["0.001"], "StepOutlier_n_outliers": ["1"], "StepOutlier_mode": ["", "x"],
    "MaxInitializationTime_threshold": ["0.000001"], "Dataloader_max_threshold": ["1"],
    "scan_interval_us": ["60000000", "1000000", "100000", str(10**15), str(10**30)],
}  # fmt: skip
BAD_PARAMETERS = {
    "scan_interval_us": ["0", "-1", "²", "1", "nan", "9" * 400],
    "CPUBottleneck_threshold": ["101", "²", "1e999"],
    "Nothing_x": ["1"],
    "CPUBottleneck": ["1"],
    "rule_to_invoke": ["²", "../../x", "CPUBottleneck", "\x1b[2J"],
    "rule_compat": ["x"],
    "source_s3_uri": ["/nowhere/²", "s3://", "file://\0"],
    "rule_stop_grace_time_secs": ["²", "-1", "1e999"],
    "rule_timeout_secs": ["9" * 400],
    "SM_PROFILER_POLL_S": ["10s", "nan"],
}


class LimitError(BaseException):
    """An input takes too long; not an Exception, so that no rule swallows it."""


def damage_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return a mutation of the contents of a file."""
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        start, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        end = min(end, start + draw.choice((1, 8, 200, len(data))))
        token = draw.choice(TOKENS)
        data = draw.choice(
            (
                lambda: data[:start],  # noqa: B023 - called at once
                lambda: data[:start] + data[end:],  # noqa: B023
                lambda: data[:start] + token + data[start:],  # noqa: B023
                lambda: data[:start] + token + data[end:],  # noqa: B023
                lambda: data[:end] + data[start:],  # noqa: B023
                lambda: damage_value(draw, data, token),  # noqa: B023
                lambda: damage_value(draw, data, token),  # noqa: B023
                lambda: damage_value(draw, data, token),  # noqa: B023
            )
        )()
    return data


def damage_value(draw: random.Random, data: bytes, token: bytes) -> bytes:
    """Replace one JSON value by a token: the rest of the file stays valid."""
    colons = [index for index, byte in enumerate(data) if byte == ord(":")]
    if not colons:
        return token
    start = draw.choice(colons) + 1
    end = next((index for index in range(start, len(data)) if data[index] in b",}]"), len(data))
    return data[:start] + token + data[end:]


def damage_job(draw: random.Random, folder: Path) -> None:
    """Damage some of a job's files and names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in draw.sample(files, min(len(files), draw.choice((1, 1, 2, 3, len(files))))):
        kind = draw.randrange(12)
        name = draw.choice(NAMES)
        if kind == 0:
            path.unlink()
        elif kind == 1:
            path.rename(path.with_name(draw.choice((name, name + path.name, path.name.replace("algo-1", name)))[:200]))
        elif kind == 2:
            path.with_name(path.name.replace("1", draw.choice("29"), 1)).write_bytes(path.read_bytes())
        elif kind == 3:
            path.write_bytes(draw.randbytes(draw.choice((0, 1, 100))))
        elif kind == 4 and ".gz" not in path.name:
            path.write_bytes(gzip.compress(path.read_bytes()))
        elif path.stat().st_size:
            path.write_bytes(damage_bytes(draw, path.read_bytes()))


def values_of(draw: random.Random, choices: dict[str, list[str]], most: int) -> dict[str, str]:
    return {name: draw.choice(choices[name]) for name in draw.sample(sorted(choices), draw.randrange(most))}


def run_engine(draw: random.Random, folder: Path) -> None:
    """Evaluate all rules: a result, or one line."""
    try:
        source = open_source(folder, cache=False, progress=False)
        results = run_rules(
            source, parameters=values_of(draw, PARAMETERS, 12), compat=draw.choice((None, None, "service"))
        )
    except ProfilerError as error:
        if "\n" in str(error):
            raise AssertionError("not one line") from error
        return
    assert not results.broken, f"broken: {results.broken}"
    assert len(results.results) == len(RULES)
    for report in results.as_dict().values():
        assert list(report) == KEYS
        json.dumps(report, allow_nan=False).encode()
    source.quality()


def run_runner(draw: random.Random, folder: Path) -> None:
    """Run the container's command: a status and a report, for any environment and configuration."""
    root = folder.parent / "ml"
    variables = {
        "SM_PROFILER_ROOT": str(root),
        "SM_PROFILER_SOURCE": str(folder),
        **values_of(draw, PARAMETERS, 5),
        **values_of(draw, BAD_PARAMETERS, draw.choice((1, 1, 3))),
    }
    variables = {name: value for name, value in variables.items() if "\0" not in value}
    config = json.dumps({"Environment": variables, "ProcessingInputs": [{"S3Input": {"S3Uri": "s3://b/p"}}]}).encode()
    if draw.randrange(3) == 0:
        (root / "config").mkdir(parents=True)
        damaged = damage_bytes(draw, config) if draw.randrange(2) else config
        (root / "config/processingjobconfig.json").write_bytes(damaged)
    kept = dict(os.environ)
    os.environ.update(variables)
    printed = io.StringIO()
    for handler in logging.getLogger().handlers[:]:
        logging.getLogger().removeHandler(handler)
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            code = main(["rules", "run"])
    finally:
        os.environ.clear()
        os.environ.update(kept)
    output = root / "processing/output/rule/profiler-output"
    status = json.loads((output / "rule-status.json").read_text("utf-8"))
    assert status["RuleEvaluationStatus"] in STATUSES, status
    assert code == (status["RuleEvaluationStatus"] == "Error"), (code, status)
    assert "InternalServerError" not in status["StatusDetails"], status
    assert "could not be evaluated" not in status["StatusDetails"], status
    assert "Traceback" not in printed.getvalue(), printed.getvalue()[-3000:]
    assert not set(map(ord, printed.getvalue())) & {*range(9), *range(11, 32), 127}, repr(printed.getvalue()[-500:])
    assert (output / "profiler-report.html").exists()
    json.loads((output / "report.json").read_text("utf-8"))


def evaluate(what: str, base: Path, seed: int) -> str:
    """Evaluate one input; return what broke a promise, or ""."""
    draw = random.Random(seed)  # reproducible inputs
    with tempfile.TemporaryDirectory(prefix="sm-profiler-fuzz-") as folder:
        job = Path(folder, "job")
        shutil.copytree(draw.choice(sorted(base.iterdir())), job)
        damage_job(draw, job)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            {"engine": run_engine, "runner": run_runner}[what](draw, job)
        except LimitError:
            return f"takes longer than {CPU_S} s"
        except MemoryError:
            return "out of memory"
        except BaseException:
            return traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    peak = peak_bytes()
    return f"{peak >> 20} MB" if peak > PEAK_BYTES else ""


def over_limit(*_: object) -> None:
    raise LimitError


def work(what: str, base: str, first: str, count: str) -> None:
    """Evaluate inputs one after another."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, over_limit)
    for seed in range(int(first), int(first) + int(count)):
        print("start", seed, flush=True)
        if broken := evaluate(what, Path(base), seed):
            print("failed", seed, json.dumps(broken), flush=True)
    print("done", count, flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:])
