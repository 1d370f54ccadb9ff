"""`tiered` topics in Spark. PySpark finds the data source by this package's name: no registration call is needed.

The import costs nothing and needs no Spark, because each look-up of any Python data source imports this package.

May import: clients, offline

~ source        the data source: a topic as rows, with the columns of Spark's Kafka source
~ reader        the splits of a batch read, and one split in a task
~ stream        the data source as a stream of micro-batches
  stream_plan   where a micro-batch begins and ends
  offsets       the options that bound a read
  plan          the even splits of a read
~ bucket        topics, bounds and batches from the bucket, without a broker
~ broker        a topic as a running broker serves it, over HTTP
~ broker_http   requests to the brokers of a cluster: redirects, waits for a busy broker
~ login         TLS and the login of a broker's HTTP, by the properties of Kafka's clients
  rows          record batches as Arrow columns
~ load          the loader: rounds until no cold record is left
~ follow        the loads of many topics in one process
  rounds        the plan of one commit of a load, and its files
~ convert       splits as one finished Parquet file
  recent_rows   the rows of the small files that this process wrote last
  table_form    the form of a Delta table, and the actions of a commit
  table_features  what Delta's features ask of a writer, and no load keeps
  snapshot      one version of a table, as a load looks at it
  topic_table   the check of a table before a load, and the rule for unclear commits
~ spark_engine  a load by Spark: tasks convert, Delta's transaction commits
~ delta_log     state and history of a table, from Delta's log, by Spark
~ delta_commit  the commit of a load, by Spark
~ delta_rewrite the commit of a repair
~ native_engine a load without a JVM
~ native_table  a topic's table without a JVM: snapshots and commits
  delta_state   the state of a table from the actions of Delta's log
  deletion_vectors  the rows of a file that are deleted
  log_cleanup   the files of Delta's log that its retention no longer needs
  checkpoint    checkpoints of Delta's log as Parquet
  joining       the small files of a table that are worth joining
~ table_log     Delta's log of a table for readers, without a JVM
~ warehouse     the tables of a warehouse, each opened when it is named
  table_report  summary, history and differences of tables
~ last_verify   the result of the last verify, in the table's folder
  orphans       the files that loads left behind and no version names
  folder_url    the one URL of a warehouse's folder, for Hadoop and this package
~ folder_check  a look at a warehouse before Java starts
~ log_folder    the files of a table, each created at most once
  history       changes that others made to a table between two loads
~ verify        the proof that a table holds every loaded record once
~ gaps          the reasons for offsets without a row, from the log
~ comparison    one version of a table compared with the log: by sums, then row by row
~ summing       parts of the log and files of a table, summed by range in tasks
  sums          sums of row hashes by range of offsets, and runs of offsets
  row_hash      the hash of each row, from Arrow columns
~ erasures      the record of erased rows in the table's folder
~ erase         erases rows from a table, for good
~ compare       the rows of a table compared with those of the log
~ repair        restores and removes rows until the table equals the log
~ sql           SQL over the tables of a warehouse
~ session       the Spark session of the commands
~ __main__      the command line, as a file for `spark-submit`
~ jars          Delta's jars and our log stores, built once by Maven
~ log_tail      records that a table does not have yet, from the bucket or a broker
~ whole_topic   a table and the newer records of its topic as one frame
  query/        SQL over the tables without a JVM: one query, a shell, notebooks
  typed/        the values of a topic as columns, and dead letters
  failures      failures of Spark as one of our own errors
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
