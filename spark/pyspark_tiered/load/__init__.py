"""Loads of a topic's cold records into its tables: plans, Parquet files, commits.

May import: as pyspark_tiered

~ load          the loader: rounds of a topic's tables until no cold record is left
~ table_loader  the rounds of one table, whatever the form of its rows
~ follow        the loads of many topics in one process
  rounds        the plan of one commit of a load, and its files
~ convert       splits as finished Parquet files: one task of a load
~ file_writer   rows as finished Parquet files in a table's folder
~ file_rewrite  a file written again, with fewer rows or other columns
  recent_rows   the rows of the small files that this process wrote last
  joining       the small files of a table that are worth joining
~ native_engine a load without a JVM
~ iceberg_property  the property of tables that are Iceberg tables too
~ native_table  a topic's table without a JVM: snapshots and commits
"""
