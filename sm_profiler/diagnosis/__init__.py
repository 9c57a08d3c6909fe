"""Diagnosis of a training: its ledger, the gain of repairing each cause, and the verdict that follows."""

from sm_profiler.diagnosis.ledger import Ledger, RankLedger
from sm_profiler.diagnosis.model import Evidence, Finding, Gain, Interval, Verdict
from sm_profiler.diagnosis.table.causes import CAUSES, Cause, Repair
from sm_profiler.diagnosis.table.reading import Table, is_table, read_table
from sm_profiler.diagnosis.table.verdict import diagnose

__all__ = [
    "CAUSES",
    "Cause",
    "Evidence",
    "Finding",
    "Gain",
    "Interval",
    "Ledger",
    "RankLedger",
    "Repair",
    "Table",
    "Verdict",
    "diagnose",
    "is_table",
    "read_table",
]
