"""build.sh with a recorded builder: pinned base, pinned build tools, bill of materials; and the Dockerfile's hygiene."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
CONTAINER = REPO / "rule_container"
DIGEST = "sha256:" + "ab" * 32
BUILDER = """#!/bin/sh
echo "$*" >> {notes}/calls
case "$1" in
pull) exit {pull} ;;
inspect) echo {digest} ;;
image) echo docker.io/library/python@{digest} ;;
build) for word; do last="$word"; done; cp -r "$last" {notes}/context ;;
esac
"""
PYTHON = """#!/bin/sh
echo "$*" >> {notes}/python
case "$*" in
*"pip download"*|*"pip install"*) exit 0 ;;
esac
exec {python} "$@"
"""


def instructions():
    """Return the Dockerfile's instructions, continuation lines joined."""
    lines = [line for line in (CONTAINER / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


@pytest.fixture
def build(tmp_path):
    def run(name="docker", *, pull=0, digest=DIGEST, **variables):
        builder, python = tmp_path / name, tmp_path / "python"
        builder.write_text(BUILDER.format(notes=tmp_path, pull=pull, digest=digest))
        python.write_text(PYTHON.format(notes=tmp_path, python=sys.executable))
        for script in (builder, python):
            script.chmod(0o755)
        environment = {**os.environ, "BUILDER": str(builder), "PYTHON": str(python), **variables}
        words = [str(CONTAINER / "build.sh"), "rules:1"]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize("name", ["docker", "buildah"])
def test_base_is_pinned_by_digest(build, tmp_path, name):
    done = build(name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"built rules:1 on docker.io/library/python@{DIGEST}\n")
    (call,) = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("build ")]
    assert f"BASE_IMAGE=docker.io/library/python@{DIGEST}" in call
    bill = json.loads((tmp_path / "context/sbom.cdx.json").read_text())
    assert bill["components"][0]["version"] == DIGEST
    assert [path.name for path in (tmp_path / "context/wheels").iterdir()] == ["sm_profiler-0.1.0-py3-none-any.whl"]


def test_given_digest_is_used(build, tmp_path):
    assert build(BASE_IMAGE=f"mine@{DIGEST}", pull=1).returncode == 0
    assert f"BASE_IMAGE=mine@{DIGEST}" in (tmp_path / "calls").read_text()
    assert "pull" not in (tmp_path / "calls").read_text()


def test_base_without_digest_is_warned_about_or_refused(build):
    done = build(BASE_IMAGE="localhost:5000/base:test", pull=1)
    assert done.returncode == 0
    assert done.stderr.startswith("build.sh: warning: localhost:5000/base:test has no digest")
    done = build(BASE_IMAGE="localhost/base:test", pull=1, REQUIRE_DIGEST="1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_packages_are_those_of_the_python_in_the_image(build, tmp_path, version):
    assert build(PYTHON_VERSION=version).returncode == 0
    lock = (tmp_path / "context/requirements.lock").read_text()
    assert ";" not in lock  # pip would evaluate markers with the Python that it runs on
    (numpy,) = re.findall(r"^numpy==(\S+) \\$", lock, re.MULTILINE)
    bill = json.loads((tmp_path / "context/sbom.cdx.json").read_text())
    assert [each["version"] for each in bill["components"] if each["name"] == "numpy"] == [numpy]
    assert ("importlib-metadata==" in lock) == (version == "3.11")
    calls = (tmp_path / "python").read_text().splitlines()
    download, *_ = [call for call in calls if call.startswith("-m pip download ")]
    assert "--no-deps" in download
    assert f"--python-version {version} " in download


def test_build_tools_are_pinned(build, tmp_path):
    assert build().returncode == 0
    calls = (tmp_path / "python").read_text().splitlines()
    assert any("--require-hashes" in call and "build-requirements.lock" in call for call in calls)
    (wheel,) = [call for call in calls if "pip wheel" in call]
    assert "--no-build-isolation" in wheel
    lock = (CONTAINER / "build-requirements.lock").read_text()
    assert re.search(r"^hatchling==[\d.]+ \\$", lock, re.MULTILINE)


def test_failing_step_fails_the_build(build, tmp_path):
    done = build(SBOM=str(tmp_path / "missing/folder.json"))
    assert done.returncode != 0
    assert "built" not in done.stdout


def test_every_command_of_the_dockerfile_can_fail_the_build():
    for line in instructions():
        if line.startswith("RUN "):
            assert ";" not in line.replace("-exec rm -r {} +", "").replace("boto3; boto3", ""), line
            assert "||" not in line
            assert "2>/dev/null" not in line


def test_image_is_unprivileged():
    text = "\n".join(instructions())
    assert "777" not in text
    assert text.index("USER ${RUN_AS}") < text.index("ENTRYPOINT")
    assert "ARG RUN_AS=1000" in text


class TestBillOfMaterials:
    def bill(self, *words, **variables):
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600", **variables}
        command = [sys.executable, str(CONTAINER / "sbom.py"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def test_lists_every_package_of_the_lock_file(self):
        found = json.loads(self.bill("--base", f"python@{DIGEST}"))
        assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
        assert found["metadata"]["timestamp"] == "2026-01-01T00:00:00Z"
        libraries = {each["name"]: each for each in found["components"] if each["type"] == "library"}
        lock = (CONTAINER / "requirements.lock").read_text()
        locked = {
            name for name, older in re.findall(r"^([\w.-]+)==[^ ]+( ; .* < '3\.12')?", lock, re.MULTILINE) if not older
        }
        assert {"numpy", "distributed", "pyarrow"} < locked
        assert set(libraries) == locked | {"sm-profiler"}
        for name in locked:
            assert libraries[name]["purl"] == f"pkg:pypi/{name}@{libraries[name]['version']}"
            (reference,) = libraries[name]["externalReferences"]
            assert all(len(each["content"]) == 64 for each in reference["hashes"])
        references = {each["bom-ref"] for each in found["components"]}
        assert len(references) == len(found["components"])
        assert set(found["dependencies"][0]["dependsOn"]) == references

    def test_depends_on_the_version_of_python(self):
        def numpy(python):
            found = json.loads(self.bill("--python", python))
            return [each["version"] for each in found["components"] if each["name"] == "numpy"]

        assert len(numpy("3.11")) == len(numpy("3.12")) == 1
        assert numpy("3.11") != numpy("3.12")

    def test_is_reproducible(self):
        assert self.bill() == self.bill()
        assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", json.loads(self.bill())["serialNumber"])
