"""Tables in mode latest: one row for each key of a partition, that of its last record, and the changes of each version.

May import: as pyspark_tiered

  fold          the last record of each key
  keys          the keys of a round, and the row groups that may hold them
~ convert       splits as files of the last records of their keys: one task of a load
~ lookup        the rows of a file that have keys of a round
~ change_file   the file of a version's changes of rows
~ table         the table: its form, the commit of a round, and its upkeep
~ target        the table as the target of a load
"""
