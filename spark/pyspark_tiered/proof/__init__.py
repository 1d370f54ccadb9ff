"""The proof that a table holds the log, and the changes that keep it true: repair and erasure.

May import: as pyspark_tiered

~ verify        the proof that a table holds every loaded record once
~ last_verify   the result of the last verify, in the table's folder
~ gaps          the reasons for offsets without a row, from the log
~ comparison    one version of a table compared with the log: by sums, then row by row
~ summing       parts of the log and files of a table, summed by range in tasks
  sums          sums of row hashes by range of offsets, and runs of offsets
  row_hash      the hash of each row, from Arrow columns
~ rewrite       the commit of a repair or an erasure
~ condition     the rows for which an SQL condition is true
~ repair        restores and removes rows until the table equals the log
~ erasures      the record of erased rows in the table's folder
~ erase         erases rows from a table, for good
"""
