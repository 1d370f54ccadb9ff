"""Log compaction as decisions: which part of a log is cleaned, and which batches and records stay.

May import: config, records

  cleanable_range  the part of a log that may be cleaned, how urgent that is, and the groups of segments
  transactions     decided transactions in a walk: batches to drop, markers to keep, entries of the new index
  batch_filter     keys of batches into the map, and batches without what is superseded, of any kind and codec
"""
