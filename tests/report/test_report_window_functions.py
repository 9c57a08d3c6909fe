"""A recorded Python window names the functions of a finding that has no sampled lines."""

import cProfile
import io
import runpy
import time

import attrs

from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.metrics.left_out import FunctionTime, own_seconds, read_functions
from sm_profiler.report import Class
from tests.support.reports import metrics_of, training

SCRIPT, LIBRARY, MODULE = "/code/train.py", "/x/site-packages/lib/a.py", "/x/site-packages/torch/nn/modules/module.py"


def figures(cumulative, **callers):
    through = {key: (1, 1, 0.0, spent) for key, spent in callers.pop("by", {}).items()}
    return (1, 1, 0.0, cumulative, through)


def test_a_function_has_the_time_of_the_libraries_that_it_calls():
    log, write, forward = (SCRIPT, 10, "log"), (SCRIPT, 20, "write"), (SCRIPT, 30, "forward")
    library, call = (LIBRARY, 5, "dumps"), (MODULE, 1, "_call_impl")
    found = own_seconds(
        {
            log: figures(5.0),
            write: figures(3.0, by={log: 3.0}),
            library: figures(2.5, by={write: 2.5}),
            call: figures(9.0),
            forward: figures(9.0, by={call: 9.0}),
            ("~", 0, "<built-in method time.sleep>"): figures(1.0, by={log: 1.0}),
        }
    )
    assert found == {log: 2.0, write: 3.0}


class Storage:
    def __init__(self, files):
        self.files = files

    def list(self, prefix):
        return [Info(key, len(data)) for key, data in self.files.items() if key.startswith(prefix)]

    def read(self, key):
        return self.files[key]


@attrs.frozen
class Info:
    key: str
    size: int


@attrs.frozen
class Source:
    storage: object

    @property
    def other_files(self):
        return self.storage.list("framework/")


def statistics(tmp_path):
    profile = cProfile.Profile()
    profile.enable()
    time.sleep(0.01)
    io.StringIO().write("x")
    profile.disable()
    profile.dump_stats(tmp_path / "stats")
    return (tmp_path / "stats").read_bytes()


def folder(mode, step):
    return f"framework/pytorch/cprofile/1-algo-1/{mode}-{step}-stepstart-1700000000000000_{mode}-{step}-forwardpassend-1700000001000000"


def test_reads_the_windows_of_training_steps(tmp_path):
    data = statistics(tmp_path)
    assert read_functions(Source(Storage({f"{folder('eval', 3)}/python_stats": b"damaged"}))) == ()
    assert (
        read_functions(Source(Storage({f"{folder('train', 3)}/python_stats": data}))) == ()
    )  # no function of a script
    assert read_functions(object()) == ()
    assert read_functions(Source(Storage({f"{folder('train', 3)}/python_stats": b"damaged"}))) == ()


def test_time_outside_the_phases_is_named_by_functions():
    metrics = metrics_of(training(400, outside=0.008))
    functions = (
        FunctionTime(SCRIPT, 20, "write", 3.0),
        FunctionTime(SCRIPT, 10, "log", 1.0),
        FunctionTime(SCRIPT, 1, "x", 0.1),
    )
    main = decide(Case(attrs.evolve(metrics, functions=functions), {})).main
    assert main.kind is Class.SYNC_BOUND
    assert [(one.line, one.function, round(one.share, 2)) for one in main.where] == [
        (20, "write", 0.73),
        (10, "log", 0.24),
    ]


def test_the_functions_of_a_script_are_read_from_its_profile(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import time\ndef save():\n    time.sleep(0.02)\ndef log():\n    save()\n    time.sleep(0.01)\n")
    names = runpy.run_path(str(script))
    profile = cProfile.Profile()
    profile.runcall(names["log"])
    profile.dump_stats(tmp_path / "stats")
    data = (tmp_path / "stats").read_bytes()
    found = read_functions(Source(Storage({f"{folder('train', 3)}/python_stats": data})))
    assert [(one.file, one.line, one.function) for one in found] == [(str(script), 2, "save"), (str(script), 4, "log")]
