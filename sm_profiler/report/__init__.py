"""Findings → verdict → report.json, HTML, notebook."""
