"""`sm-profiler try-loader` with real scripts: it measures, never trains, and ends in one line."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from sm_profiler.cli import main

HEAD = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.zeros(64, 2))
"""


def start(folder, script, *words):
    (folder / "train.py").write_text(HEAD + textwrap.dedent(script))
    command = [sys.executable, "-m", "sm_profiler", "try-loader", "--seconds", "0.1", "--workers", "0", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SM_PROFILER")}
    return subprocess.Popen(
        [*command, "train.py", "--epochs", "3"], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment, start_new_session=True,
    )  # fmt: skip


def run(folder, script, *words):
    process = start(folder, script, *words)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.slow
def test_script_ends_at_its_loader_without_training_or_cleaning_up(tmp_path):
    script = """
    assert sys.argv[1:] == ["--epochs", "3"] and __name__ == "__main__"
    print("to standard output")
    with torch.no_grad():
        list(DataLoader(data))  # a check before the training
    def train():
        try:
            for batch in DataLoader(data, batch_size=4, shuffle=True):
                open("trained", "w")
        except BaseException:
            open("handled", "w")
        finally:
            open("checkpoint", "w")
    train()
    """
    code, out, err = run(tmp_path, script, "--json", "-")
    found = json.loads(out)
    assert code == 0
    assert found["dataset"] == "TensorDataset"
    assert found["batch_size"] == 4
    assert found["loaders"] == 2
    assert found["best"]["per_second"] > 0
    assert "it ends here, before any training" in err
    assert "to standard output" in err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.first(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "code", "message"),
    [
        (
            "print('no loader')",
            (),
            2,
            "train.py ended without iterating over a PyTorch DataLoader (torch.utils.data) with gradients enabled, which",
        ),
        ("for _ in DataLoader(data): pass", ("--loader", "2"), 2, "a DataLoader number 2"),
        ("raise SystemExit(7)", (), 2, "train.py failed before its DataLoader delivered a batch (exit code 7)"),
    ],
)
def test_script_without_a_loader_is_named(tmp_path, script, words, code, message):
    found, out, err = run(tmp_path, script, *words)
    assert (found, out) == (code, "")
    assert message in err.splitlines()[-1]


@pytest.mark.slow
def test_error_of_the_dataset_ends_with_1(tmp_path):
    script = """
    class Broken(TensorDataset):
        def __getitem__(self, index):
            raise OSError("disk on fire")
    for _ in DataLoader(Broken(torch.zeros(4))): pass
    """
    code, out, _ = run(tmp_path, script)
    assert code == 1
    assert "OSError: disk on fire" in out


@pytest.mark.slow
def test_interrupt_prints_what_was_measured(tmp_path):
    script = """
    for _ in DataLoader(data, batch_size=4): open("trained", "w")
    """
    process = start(tmp_path, script, "--seconds", "1000")
    for line in process.stderr:
        if "ends here" in line:
            break
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "No setting delivered a batch." in out
    assert not (tmp_path / "trained").exists()


def test_wrong_usage_is_reported_in_one_line(tmp_path):
    from sm_profiler.cli import main

    assert main(["try-loader"]) == 2
    assert main(["try-loader", str(tmp_path / "missing.py")]) == 2
    assert main(["try-loader", "-m", "no_such_module_here"]) == 2
    (tmp_path / "train.py").write_text("")
    assert main(["try-loader", "--seconds", "-1", str(tmp_path / "train.py")]) == 2
    assert main(["try-loader", "--profile", str(tmp_path), str(tmp_path / "train.py")]) == 2


@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_loaders_count_from_one(number, capsys):
    with pytest.raises(SystemExit):
        main(["try-loader", f"--loader={number}", "script.py"])
    assert "loaders count from 1" in capsys.readouterr().err
