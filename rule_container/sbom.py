"""Software bill of materials of the rule image, as CycloneDX 1.5 JSON, from its lock file.

    python rule_container/sbom.py [--base IMAGE] [--python 3.12] [--lock FILE] > sbom.cdx.json

The output depends on the arguments, the lock file, the version of sm-profiler and SOURCE_DATE_EPOCH only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from locked import locked, version_of

HERE = Path(__file__).parent
_VERSION = re.compile(r'__version__ = "(.+)"')


def component(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    """Return one package; its hashes are those of the files that the lock file allows."""
    reference = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
    }
    if hashes:
        files = [{"alg": "SHA-256", "content": content} for content in hashes]
        url = f"https://pypi.org/project/{name}/{version}/#files"
        found["externalReferences"] = [{"type": "distribution", "url": url, "hashes": files}]
    return found


def base_component(image: str) -> dict[str, Any]:
    """Return the base image, whose own packages are not listed."""
    name, _, digest = image.partition("@")
    found = {"type": "container", "bom-ref": f"base:{image}", "name": name, "version": digest or "unpinned"}
    return found | ({"hashes": [{"alg": "SHA-256", "content": digest[7:]}]} if digest.startswith("sha256:") else {})


def bill_of_materials(lock: str, version: str, base: str, python: tuple[int, ...]) -> dict[str, Any]:
    """Return the whole document."""
    components = [base_component(base)] if base else []
    components += [component("sm-profiler", version, [])]
    components += [component(*package) for package in locked(lock, python)]
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    image = {
        "type": "container",
        "bom-ref": "sm-profiler-rules",
        "name": "sm-profiler-rules",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    contents = json.dumps([image, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, contents)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": image,
        },
        "components": components,
        "dependencies": [{"ref": "sm-profiler-rules", "dependsOn": [each["bom-ref"] for each in components]}],
    }


def main() -> None:
    """Print the document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", default="", help="the base image; with @sha256:… for its digest")
    parser.add_argument("--python", default="3.12", help="version of Python in the image (default: 3.12)")
    parser.add_argument("--lock", type=Path, default=HERE / "requirements.lock")
    options = parser.parse_args()
    version = _VERSION.search((HERE.parent / "sm_profiler/_version.py").read_text("utf-8"))
    python = version_of(options.python)
    document = bill_of_materials(options.lock.read_text("utf-8"), version[1] if version else "", options.base, python)
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
