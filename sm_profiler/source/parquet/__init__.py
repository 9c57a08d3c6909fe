"""Profiles as Parquet: where the files are, what is in them, and a storage that serves them to `ProfileSource`."""
