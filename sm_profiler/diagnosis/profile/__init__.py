"""Diagnosis of a profile: its ledger, what is found in it, what each repair saves, and the verdict."""
