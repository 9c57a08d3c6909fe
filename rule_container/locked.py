"""The packages of a lock file that one version of Python installs.

    python rule_container/locked.py 3.12 < requirements.lock > of-this-version.lock

pip evaluates markers with the Python that it runs on, even if `--python-version` names another one.
"""

from __future__ import annotations

import re
import sys

_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?: *; *(?P<marker>[^\\]+?))? *\\$")
_HASH = re.compile(r"--hash=sha256:(?P<content>[0-9a-f]+)")
_MARKER = re.compile(r"python(?:_full)?_version (?P<operator><|>=) '(?P<version>[0-9.]+)'")


def locked(text: str, python: tuple[int, ...]) -> list[tuple[str, str, list[str]]]:
    """Return (name, version, SHA-256 hashes) of each package that a lock file installs on a version of Python.

    Raises:
        ValueError: a marker is about something else than the version of Python.
    """
    packages: list[tuple[str, str, list[str]]] = []
    current: list[str] | None = None
    for line in text.splitlines():
        if entry := _ENTRY.match(line):
            current = []
            if applies(entry["marker"], python):
                packages.append((entry["name"], entry["version"], current))
        elif current is not None and (found := _HASH.search(line)):
            current.append(found["content"])
    return packages


def applies(marker: str | None, python: tuple[int, ...]) -> bool:
    """Return True if a package's environment marker is met.

    Raises:
        ValueError: the marker is about something else than the version of Python.
    """
    if marker is None:
        return True
    parts = _MARKER.fullmatch(marker.strip())
    if parts is None:
        raise ValueError(f"cannot evaluate the marker {marker!r}")
    limit = tuple(map(int, parts["version"].split(".")))
    return python < limit if parts["operator"] == "<" else python >= limit


def version_of(text: str) -> tuple[int, ...]:
    """Return `3.12` as numbers."""
    return tuple(map(int, text.split(".")))


def main() -> None:
    """Print a lock file without markers."""
    for name, version, hashes in locked(sys.stdin.read(), version_of(sys.argv[1])):
        sys.stdout.write(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in hashes)]) + "\n")


if __name__ == "__main__":
    main()
