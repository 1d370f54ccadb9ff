"""A table in Delta's format, without a JVM: its log, its state, its files, and the form of a topic's tables.

May import: as pyspark_tiered

  table_form    the form of a Delta table, and the actions of a commit
  table_features  what Delta's features ask of a writer, and no load keeps
  delta_state   the state of a table from the actions of Delta's log
  history       changes that others made to a table between two loads
  deletion_vectors  the rows of a file that are deleted
  checkpoint    checkpoints of Delta's log as Parquet
  log_cleanup   the files of Delta's log that its retention no longer needs
  orphans       the files that loads left behind and no version names
  snapshot      one version of a table, as a load looks at it
  topic_table   the check of a table before a load, and the rule for unclear commits
  folder_url    the one URL of a warehouse's folder, for Hadoop and this package
~ folder_check  a look at a warehouse before Java starts
~ log_folder    the files of a table, each created at most once
~ table_log     Delta's log of a table for readers, without a JVM
~ warehouse     the tables of a warehouse, each opened when it is named
~ delta_log     state and history of a table, from Delta's log, by Spark
~ delta_commit  the commit of a load, by Spark
~ delta_rewrite the commit of a repair, by Spark
"""
