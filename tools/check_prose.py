"""Check the project's prose against the word list in prose.toml.

    python tools/check_prose.py [PATH ...]

Reads Python files (docstrings, comments, string literals of three words or more, names of tests) and Markdown files
(without code), prints one line per finding, and exits with 1 if there is any. Without paths it checks every tracked
file. A line that ends in `# prose: ok` is skipped; use it for quotations and for texts that another product dictates.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # what pip and pytest bring along on 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
RULES = tomllib.loads((ROOT / "tools/prose.toml").read_text())
WORDS = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): advice for pattern, advice in RULES["words"].items()}
OPENINGS = {re.compile(rf"(?:{pattern})\b"): advice for pattern, advice in RULES["openings"].items()}
SKIPPED = ("tests/data/", "tools/", "docs/changelog", "LICENSE")
MIN_WORDS = 3

Span = tuple[int, str]  # line number, text


def python_prose(source: str) -> Iterator[Span]:
    """Yield comments, string literals that read as prose, and the names of tests."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= MIN_WORDS:
            for offset, line in enumerate(node.value.split("\n")):
                yield node.lineno + offset, line
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")


def docstring_openings(source: str) -> Iterator[Span]:
    """Yield the first line of each docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text.split("\n", 1)[0]


def markdown_prose(source: str) -> Iterator[Span]:
    """Yield the lines of a Markdown page without code, link targets and HTML comments."""
    in_code = False
    for number, line in enumerate(source.split("\n"), 1):
        if line.lstrip().startswith(("```", "~~~")):
            in_code = not in_code
        elif not in_code and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", " ", line)


def findings(path: Path) -> Iterator[str]:
    """Yield one line per finding in a file."""
    source = path.read_text()
    lines = source.split("\n")
    spans = list(python_prose(source) if path.suffix == ".py" else markdown_prose(source))
    checks = [(spans, WORDS, re.Pattern.search)]
    if path.suffix == ".py":
        checks.append((list(docstring_openings(source)), OPENINGS, re.Pattern.match))
    for texts, rules, find in checks:
        for number, text in texts:
            for pattern, advice in rules.items():
                found = find(pattern, text)
                if found and not lines[min(number, len(lines)) - 1].rstrip().endswith("# prose: ok"):
                    yield f"{path.relative_to(ROOT)}:{number}: “{found.group()}”: write {advice}"


def checked_files(names: list[str]) -> list[Path]:
    """Return the Python and Markdown files below the given paths, or all tracked ones."""
    # the scripts of strangers are written as their authors write
    names = [*names, ":!benchmarks/strangers/open", ":!benchmarks/strangers/sealed"]
    listed = subprocess.run(["git", "ls-files", *names], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        ROOT / name
        for name in listed.splitlines()
        if name.endswith((".py", ".md")) and not name.startswith(SKIPPED) and (ROOT / name).is_file()
    ]


def main(names: list[str]) -> int:
    """Print all findings; return the exit code."""
    found = sorted({line for path in checked_files(names) for line in findings(path)})
    print("\n".join(found) if found else "prose: nothing found")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
