"""Log compaction as decisions: which part of a log is cleaned, and which batches and records stay.

May import: config, records

  cleanable_range  the part of a log that may be cleaned, how urgent that is, and the groups of segments
  transactions     decided transactions in a walk: batches to drop, markers to keep, entries of the new index
  batch_filter     keys of batches into the map, and batches without what is superseded, of any kind and codec
  rewrites         the segments that a clean writes again, if it may leave segments alone
  request_budget   the requests of a clean in the bucket, and the clean that is worth them
"""
