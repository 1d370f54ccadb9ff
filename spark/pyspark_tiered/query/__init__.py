"""SQL over the tables of a warehouse by a native engine (DuckDB), without a JVM: one query, a shell, and notebooks.

May import: as pyspark_tiered

  text        tokens of SQL, quoted names of Spark, and Delta's words for time travel
  statement   the check of a parsed query: it may only read tables; and fields of JSON in keys and values
  views       the query that reads the files of one version of a table
~ engine      a session: opens the tables that a query names, and runs it
~ bucket_files  files of a bucket for DuckDB
  table_report  summary, history and differences of tables
~ table_facts  the facts of a table: summary, dead letters, last verify
~ warehouse_report  a report on the tables of a warehouse, as a process of its own
  output      rows as aligned text, JSON lines or CSV, one after the other
~ shell       the shell of `tiered sql`
~ notebook    the magic `%%tiered` for IPython and Jupyter
"""
