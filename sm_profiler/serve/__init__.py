"""The live page and the live terminal: the report of a job, kept current while it runs."""
