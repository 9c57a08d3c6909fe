"""Write docs/*.schema.json from the records of report.json and fleet.json.

python tools/schemas.py
"""

import json
from pathlib import Path

from sm_profiler.fleet import model as fleet
from sm_profiler.report import report_json

DOCS = Path(__file__).parents[1] / "docs"
SCHEMAS = {"report": report_json.schema, "fleet": fleet.schema}


def text_of(name: str) -> str:
    """Return the text of a schema's file."""
    return json.dumps(SCHEMAS[name](), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in SCHEMAS:
        (DOCS / f"{name}.schema.json").write_text(text_of(name), "utf-8")
