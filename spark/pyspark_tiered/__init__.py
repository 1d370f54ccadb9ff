"""`tiered` topics in Spark. PySpark finds the data source by this package's name: no registration call is needed.

The import costs nothing and needs no Spark, because each look-up of any Python data source imports this package.

May import: delta, log, registry

~ source        the data source: a topic as rows, with the columns of Spark's Kafka source
~ reader        the splits of a batch read, and one split in a task
~ stream        the data source as a stream of micro-batches
  stream_plan   where a micro-batch begins and ends
~ whole_topic   a table and the newer records of its topic as one frame
~ spark_engine  a load by Spark: tasks of a session convert
~ sql           SQL over the tables of a warehouse
~ session       the Spark session of the commands
~ jars          Delta's jars and our log stores, built once by Maven
  failures      failures of Spark as one of our own errors
~ __main__      the command line, as a file for `spark-submit`
  log/          a topic's log for readers, from the bucket or from brokers
  delta/        tables in Delta's format: log, state, files, form
  iceberg/      metadata of Iceberg beside the tables, for other engines
  load/         loads of a topic into its tables
  latest/       tables with one row for each key, and their changes
  typed/        the values of a topic as columns, and dead letters
  schemas/      values with schemas of a registry as columns
  proof/        the proof that a table holds the log; repair and erasure
  query/        SQL over the tables without a JVM: one query, a shell, notebooks
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_tiered.source import DefaultSource
    from pyspark_tiered.whole_topic import table

__all__ = ["DefaultSource", "table"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_tiered.source import DefaultSource

        return DefaultSource
    if name == "table":
        from pyspark_tiered.whole_topic import table

        return table
    if name == "load_ipython_extension":
        from pyspark_tiered.query.notebook import load_ipython_extension

        return load_ipython_extension
    raise AttributeError(name)
