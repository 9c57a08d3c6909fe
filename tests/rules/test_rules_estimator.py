"""A custom rule through an Estimator, on the local endpoint."""

import json
import os
import subprocess
import sys

import pytest

from sm_profiler.local import LocalSageMaker
from tests.support.rules import DATA

RULE = '''
class AnySamples:
    """Fires if there are at least so many system metrics."""

    def __init__(self, least="1"):
        self.least, self.count = int(least), 0

    def update(self, window):
        self.count += len(window.new_system)

    def result(self):
        return {"RuleTriggered": int(self.count >= self.least), "Datapoints": self.count}
'''


@pytest.mark.slow
@pytest.mark.sdk2
def test_custom_rule_runs_beside_an_estimator_job(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text("import time\ntime.sleep(6)\nprint('trained')\n")
    (folder / "mine.py").write_text(RULE)
    with LocalSageMaker() as local:
        command = [sys.executable, str(DATA / "estimator_client.py"), str(folder), local.role]
        environment = {**os.environ, **local.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        status, (rule,) = json.loads(done.stdout.splitlines()[-1])
    assert status == "Completed", done.stdout
    assert (rule["RuleConfigurationName"], rule["RuleEvaluationStatus"]) == ("Mine", "IssuesFound"), rule
    assert rule["StatusDetails"] == "The condition of the rule AnySamples is met"
