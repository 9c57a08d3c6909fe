"""Diagnosis of a table of times: its ledger, causes as what-if questions on a graph of operations, and the verdict."""
