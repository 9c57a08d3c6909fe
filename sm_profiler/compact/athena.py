"""Statements that make the tables known to Athena, and to other engines that read Hive's."""

from __future__ import annotations

import pyarrow as pa

from sm_profiler.source.parquet import paths
from sm_profiler.source.parquet.schema import SCHEMAS

_TYPES = {
    pa.string(): "string", pa.float64(): "double", pa.int64(): "bigint", pa.int32(): "int", pa.bool_(): "boolean",
    pa.binary(): "binary",
}  # fmt: skip
DATABASE = "sm_profiler"


def athena_ddl(location: str, *, database: str = DATABASE) -> str:
    """Return the statements for a dataset.

    The last statement of each table adds its partitions: repeat it after new jobs or hours.

    Args:
        location: s3:// URI of the dataset.
        database: name of the database.
    """
    quoted = location.rstrip("/").replace("'", "\\'")
    statements = [f"CREATE DATABASE IF NOT EXISTS {database};"]
    for table, schema in SCHEMAS.items():
        columns = ",\n".join(f"  `{field.name}` {_TYPES[field.type]}" for field in schema)
        keys = ["job string"] if table == paths.FILES else ["job string", "node string", "hour string"]
        statements.append(
            f"CREATE EXTERNAL TABLE IF NOT EXISTS {database}.{table} (\n{columns}\n)\n"
            f"PARTITIONED BY ({', '.join(keys)})\nSTORED AS PARQUET\nLOCATION '{quoted}/{table}/';"
        )
        statements.append(f"MSCK REPAIR TABLE {database}.{table};")
    return "\n\n".join(statements) + "\n"
