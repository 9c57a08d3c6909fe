"""The jobs that a source holds: a folder, a prefix, a data set in Parquet, an account, or a single job."""
