"""Findings and metrics for other tools: coding agents, trackers, dashboards, messages.

Each exporter is a package or module of its own with an extra of its own, and none is imported unless it is used.
"""
