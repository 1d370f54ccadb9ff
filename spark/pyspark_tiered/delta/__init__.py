"""A table in Delta's format, without a JVM: its log, its state, its files, and the form of a topic's tables.

May import: offline

  table_form    the form of a Delta table, and the actions of a commit
  table_features  what Delta's features ask of a writer, and no load keeps
  delta_state   the state of a table from the actions of Delta's log
  history       changes that others made to a table between two loads
  deletion_vectors  the rows of a file that are deleted
  vector_file   deletion vectors as bytes, and the file of those of a commit
  checkpoint    checkpoints of Delta's log as Parquet
  log_cleanup   the files of Delta's log that its retention no longer needs
  orphans       the files that loads left behind and no version names
  vacuum_plan   the files that no kept version needs
  rebuild_folder  the hidden folders of rebuilds
~ snapshot      one version of a raw table, as loads, queries and proofs look at it
  topic_table   the rules by which a table is sound
  folder_url    the one URL of a warehouse's folder, for Hadoop and this package
~ folder_check  a look at a warehouse before Java starts
~ log_folder    the files of a table, each created at most once
~ table_log     Delta's log of a table for readers, without a JVM
~ vacuum        the removal of files that no kept version needs, and of the expired log
~ data_files    rows in the data files of a raw table, whoever wrote them
~ warehouse     the tables of a warehouse, each opened when it is named
"""
