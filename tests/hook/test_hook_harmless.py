"""Scripts whose own rules the hook must keep: each prints the same, and ends the same, without it."""

import json
import subprocess
import sys

import pytest

from tests.support.hook import environment

TRAINING = """
import sys, time, torch
from torch import nn

def train(steps=12, each=lambda step: None, pause=0.0, model=None):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause)
        each(step)
    return model

def show(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
"""

JOIN = """
import threading
train()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
show(threading.active_count())
"""
LOGGING_THREAD = """
import logging, threading
from sm_profiler import threads
train()
threads.start(lambda: (logging.warning("from a thread"), threading.current_thread()), name="sm-profiler test").join()
show(threading.active_count(), len(threads.running()) >= 2)
"""
SIGNALS = """
import os, signal, subprocess
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
def warn(step):
    if step == 5:
        subprocess.run(["kill", "-USR1", str(os.getpid())])
        show(signal.sigtimedwait([signal.SIGUSR1], 5).si_signo == signal.SIGUSR1)
train(each=warn)
"""
PARAMETERS = """
import io
class Listed(nn.Sequential):
    def parameters(self):
        return list(super().parameters())
class OfGroup(nn.Sequential):
    def parameters(self, group):
        return self[group].parameters()
class Delegating(nn.Sequential):
    def register_forward_hook(self, hook):
        return self[1].register_forward_hook(hook)
    def register_forward_pre_hook(self, hook):
        return self[0].register_forward_pre_hook(hook)
for kind in Listed, OfGroup, Delegating:
    model = kind(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD([model[0].weight, model[1].weight], 0.01)
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        torch.save(model, io.BytesIO())
    show(len(model[0]._forward_pre_hooks) + len(model[1]._forward_hooks))
"""
COPIES = """
import copy, io, pickle
model = train()
saved = pickle.loads(pickle.dumps(model)), copy.deepcopy(model)
show([len(getattr(one, name)) for one in saved for name in vars(one) if "hooks" in name and getattr(one, name)])
"""
DELETED = """
import gc, weakref
alive = []
for _ in range(2):
    teacher = nn.Sequential(nn.Linear(4, 4))
    with torch.no_grad():
        teacher(torch.ones(2, 4))
    alive.append(weakref.ref(teacher))
    del teacher
gc.collect()
show([one() is None for one in alive])
compiled = nn.Linear(4, 4)
compiled.compile(backend="eager")
compiled(torch.ones(2, 4))
alive = weakref.ref(compiled)
del compiled
torch._dynamo.reset()
gc.collect()
show(alive() is None)
"""
INPUTS = """
import torch.fx
from sm_profiler.hook import entry
class Box:
    shape = property(lambda self: 1 / 0)
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(torch.ones(2, 4))
for x in Box(), torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)]):
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(4):
        model(x).sum().backward()
        optimizer.step()
show(torch.fx.symbolic_trace(model).graph.find_nodes(op="call_function", target=getattr))
with torch.inference_mode():
    inference = Odd()
    for _ in range(4):
        inference(torch.ones(2, 4))
class Sampler(torch.utils.data.BatchSampler):
    batch_size = property(lambda self: 1 / 0)
    def __init__(self): pass
    def __iter__(self): return iter([[0, 1], [2, 3]])
    def __len__(self): return 2
show(len(list(torch.utils.data.DataLoader(list(range(4)), batch_sampler=Sampler()))))
show(entry.get_hook().session.guard.failures)
"""
INFERENCE = """
from sm_profiler.hook import entry
with torch.inference_mode():
    model = nn.Linear(4, 1)
    for _ in range(40):
        model(torch.ones(2, 4))
show(entry.get_hook().session.guard.failures)
"""
WRONG_CALLS = """
from sm_profiler.hook import entry
def attempt(*args, **kwargs):
    try:
        torch.autograd.backward(*args, **kwargs)
    except Exception as error:
        show(type(error).__name__)
model = train(each=lambda step: attempt() if step in (2, 3, 4) else None)
show(type(nn.Module.eval(self=model)).__name__, type(torch.optim.SGD(params=model.parameters(), lr=0.1)).__name__)
show(entry.get_hook().session.guard.failures)
"""
C_FUNCTIONS = """
import copy, enum, inspect, os, pickle
class Trainer:
    log, dump, sync, leave = print, pickle.dump, os.fsync, os._exit
class Out(enum.Enum):
    SHOW = print
train()
trainer = Trainer()
trainer.log("step", 1)
with open("x", "wb") as file:
    trainer.dump([1], file)
    trainer.sync(file.fileno())
show(*map(inspect.isbuiltin, (print, pickle.dump, os.fsync, os._exit)))
show(len(Out), pickle.loads(pickle.dumps(print)) is copy.deepcopy(print) is print, repr(print), type(print).__name__)
show(print.__name__, print.__self__.__name__, os.fsync.__module__, os.fsync.__text_signature__, inspect.signature(os.fsync))
show(print.__doc__[:16], os.fsync.__qualname__)
sys.stdout.flush()
trainer.leave(0)
"""
CLOSED_FILES = """
import atexit, os
def reopened(name):
    os.closerange(3, 256)
    return [os.open(f"{name}-{number}", os.O_RDWR | os.O_CREAT) for number in range(20)]
def last():
    for file in reopened("last"):
        os.write(file, b"weights")
atexit.register(last)
files = []
def each(step):
    if step == 20:
        files.extend(reopened("model"))
    for file in files:
        os.write(file, b".")
train(300, each, pause=0.01)
show({os.pread(file, 1000, 0) == b"." * 280 for file in files}, {os.close(file) for file in files})
"""
# case → script and what it prints
CASES = {
    "threads that the script joins": (JOIN, ["1"]),
    "log lines of our threads": (LOGGING_THREAD, ["1 True"]),
    "a blocked signal": (SIGNALS, ["True"]),
    "functions of torch's names in a model": (PARAMETERS, ["0", "0", "0"]),
    "copies of a model": (COPIES, ["[]"]),
    "deleted models": (DELETED, ["[True, True]", "True"]),
    "odd inputs": (INPUTS, ["[]", "2", "{}"]),
    "a model made for inference": (INFERENCE, ["{}"]),
    "functions of C in classes": (
        C_FUNCTIONS,
        [
            "step 1",
            "True True True True",
            "1 True <built-in function print> builtin_function_or_method",
            "print builtins os ($module, /, fd) (fd)",
            "Prints the value fsync",
        ],
    ),
    "files that the script closes": (CLOSED_FILES, ["{True} {None}"]),
    "wrong calls": (WRONG_CALLS, ["TypeError"] * 3 + ["Sequential SGD", "{}"]),
}


@pytest.mark.first(4)
@pytest.mark.parametrize("case", CASES)
def test_scripts_do_what_they_do_without_the_hook(tmp_path, case):
    text, expected = CASES[case]
    done = run(tmp_path, text)
    assert (done.stdout.splitlines(), done.returncode) == (expected, 0), done.stderr
    assert "switched off" not in done.stderr
    assert {path.read_text() for path in tmp_path.glob("last-*")} <= {"weights"}


FILE_SIZE = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
list(torch.utils.data.DataLoader(list(range(8)), num_workers=2))
train(300, pause=0.01)
show("trained")
"""


def test_a_limit_of_file_sizes_ends_the_profile_only(tmp_path):
    done = run(tmp_path, FILE_SIZE)
    assert (done.stdout, done.returncode) == ("trained\n", 0), done.stderr
    assert "cannot be written" in done.stderr


CHILDREN = """
import os, signal
seen = []
signal.signal(signal.SIGCHLD, lambda *_: seen.append(os.waitpid(-1, os.WNOHANG)))
train(60, pause=0.05)
time.sleep(1)
show(seen)
"""


def test_a_script_that_handles_sigchld_meets_no_child_of_the_hook(tmp_path):
    window = json.dumps({"StartStep": 4, "NumSteps": 3})
    done = run(tmp_path, CHILDREN, DetailedProfilingConfig=window)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
    assert list(tmp_path.rglob("*.json.gz"))  # converted at the end


def run(folder, text, *words, **parameters):
    script = folder / "train.py"
    script.write_text(TRAINING + text)
    profile = {"ProfilingParameters": {"LocalPath": str(folder / "profile"), **parameters}}
    return subprocess.run(
        [sys.executable, "-m", "sm_profiler.hook.launch", script, *words], cwd=folder, capture_output=True, text=True,
        env=environment(SM_PROFILER_CONFIG=json.dumps(profile), OMP_NUM_THREADS="1"), check=False, timeout=60,
    )  # fmt: skip
