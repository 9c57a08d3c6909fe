"""Promises of the documents, and rules that every file keeps."""

import os
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from sm_profiler.cli.main import COMMANDS, build_parser

ROOT = Path(__file__).parents[1]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


DOCS = ROOT / "docs"


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]


def test_links_in_documents_lead_somewhere():
    for page in pages():
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_links_of_the_site_stay_inside_it():
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            inside = "://" in target or (page.parent / target).resolve().is_relative_to(DOCS)
            assert inside, f"{page.relative_to(ROOT)} links to {target}, which the site does not contain"


def test_lines_of_documents_wrap():
    for page in pages():
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for line in text.splitlines():
            wrappable = not line.startswith(("|", "    ", "!", "#")) and "](http" not in line
            assert not wrappable or len(line) <= 120, f"{page.relative_to(ROOT)}: {line[:60]}…"


def test_no_file_contains_a_path_of_this_machine():
    """Paths of one machine in the tree break for everybody else."""
    places = [str(ROOT) + "/", *filter(None, [os.environ.get("PIP_FIND_LINKS")])]
    for path in tracked():
        text = path.read_bytes()
        assert not any(place.encode() in text for place in places), path


def test_no_code_that_runs_data():
    for path in tracked():
        if path.suffix == ".py" and "tests" not in path.parts:
            code = re.sub(r'"""(?:.|\n)*?"""|#.*', "", path.read_text())
            assert not re.search(r"(?<![\w.])(?:eval|exec)\(|pickle\.loads?\(|shell=True", code), path


def lines_of_code() -> list[tuple[str, str]]:
    """Return the lines of all code blocks, each with its page."""
    found = []
    for page in pages():
        fenced = False
        for line in page.read_text().replace("\\\n", " ").splitlines():
            fenced ^= line.lstrip().startswith("```")
            if fenced or line.startswith("    "):
                found.append((page.name, line.strip()))
    return found


def test_documented_commands_are_understood():
    commands = [(page, re.split(r" #| \|\|? | > ", line)[0]) for page, line in lines_of_code()]
    commands = [(page, line) for page, line in commands if line.startswith("sm-profiler ") and "[--" not in line]
    assert len(commands) > 40
    for page, line in commands:
        words = shlex.split(line)[1:]
        parser, _, _ = build_parser(words[0])
        try:
            parser.parse_known_args(words) if words[0] == "run" else parser.parse_args(words)
        except SystemExit:
            pytest.fail(f"{page}: {line}")


def test_a_line_of_code_has_one_command():
    """A tool that wraps paragraphs joins them easily."""
    for page, line in lines_of_code():
        words = re.sub("`[^`]*`", "", line).split()
        commands = [after for before, after in pairwise(words) if before == "sm-profiler" and after in COMMANDS]
        joined = len(commands) > 1 or (commands and words[:2] == ["pip", "install"])
        assert not joined, f"{page}: {line}"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/script.md"])
def test_what_a_reader_installs_first_installs_from_a_checkout_too(page):
    text = (ROOT / page).read_text()
    extras = re.search(r"pip install 'sm-profiler(\[\w+\])'", text)[1]
    assert f"in a checkout: pip install '.{extras}'" in text
