"""The data model: what is written is read again."""

import json
from pathlib import Path

from sm_profiler.fleet.model import Fleet, FleetJob, Loss, Node, Totals, schema


def test_json_is_read_again():
    job = FleetJob("resnet-7", tags={"team": "nlp"}, losses=(Loss("INPUT_BOUND", 60.0, 0.5),), nodes=(Node("algo-1"),))
    fleet = Fleet("now", ("s3://bucket",), totals=Totals(jobs=1, causes={"INPUT_BOUND": 0.5}), jobs=(job,))
    assert Fleet.from_json(fleet.to_json()) == fleet


def test_missing_numbers_become_null():
    job = FleetJob("resnet-7", lost_share=float("nan"), gpu_hours=float("inf"))
    row = json.loads(Fleet(jobs=(job,)).to_json())["jobs"][0]
    assert row["lost_share"] is row["gpu_hours"] is row["bill_usd"] is None


def test_the_schema_in_the_documentation_is_current():
    """Run `python tools/schemas.py` if it is not."""
    assert json.loads((Path(__file__).parents[2] / "docs/fleet.schema.json").read_text("utf-8")) == schema()


def test_the_schema_requires_every_field():
    parts = [schema(), *schema()["$defs"].values()]
    assert all(list(part["properties"]) == part["required"] for part in parts)
