"""Diagnosis of a training: its ledger, the gain of repairing each cause, and the verdict that follows."""

from sm_profiler.diagnosis.ledger import Ledger, RankLedger
from sm_profiler.diagnosis.model import Interval
from sm_profiler.diagnosis.table.causes import CAUSES, Cause, Fact, Repair
from sm_profiler.diagnosis.table.reading import Table, is_table, read_table
from sm_profiler.diagnosis.table.verdict import Finding, Verdict, diagnose

__all__ = [
    "CAUSES",
    "Cause",
    "Fact",
    "Finding",
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
