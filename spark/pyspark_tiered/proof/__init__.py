"""The proof that a table holds the log, raw or typed, and the changes that keep it true: repair and erasure.

May import: as pyspark_tiered

~ verify        the proof that tables hold every loaded record once, as a row or a dead letter
~ last_verify   the result of the last verify, in the table's folder
~ gaps          the reasons for offsets without a row, from the log
~ comparison    one version of a table compared with the log: by sums, then row by row
~ summing       parts of the log and files of a table, summed by range in tasks
~ latest_fold   a table in mode latest compared with a fold of the log
  sums          sums of row hashes by range of offsets, and runs of offsets
  row_form      the rows that records become in a table, and their hashes: raw rows, typed rows, dead letters
  row_hash      the hash of a row from the columns of a record
~ rewrite       the commit of a repair or an erasure
~ condition     the rows for which an SQL condition is true
~ repair        restores and removes rows until the table equals the log
~ erasures      the record of erased rows in the table's folder
~ erase         erases rows from a table, for good
  exchange      the commit that puts a rebuilt table in the place of the old one
~ rebuild       makes a raw table anew beside the old one, and exchanges both
"""
