"""How a rule job ends: the API's status words, and the file that carries them out of the container."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path

STATUS_FILE = "rule-status.json"
LONGEST = 1024  # characters of StatusDetails


class Status(str, Enum):
    """RuleEvaluationStatus of the API."""

    IN_PROGRESS = "InProgress"
    NO_ISSUES = "NoIssuesFound"
    ISSUES = "IssuesFound"
    ERROR = "Error"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


def write_status(folder: Path, status: Status, details: str = "") -> None:
    """Write `rule-status.json`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"RuleEvaluationStatus": status.value, "StatusDetails": details[:LONGEST]})
    temporary = folder / f"{STATUS_FILE}.tmp"
    temporary.write_text(text + "\n", "utf-8")
    temporary.replace(folder / STATUS_FILE)
