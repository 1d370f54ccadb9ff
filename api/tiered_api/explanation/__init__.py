"""Explanations: why a segment, a fetch, a partition, a group, a topic or a table is as it is.

Each file has a pure function from facts that carriers have gathered to causes.

May import: broker, health

  cause      one fact with its sentence, and what mends it
  transaction  the open transaction that holds a partition
  segment    why a segment is on a disk, in the bucket, or in both
  partition  why a partition has no leader, or its offsets do not move
  fetch      which tier answers a fetch, and what bounds it
  group      why a group does not read, or is behind
  topic      what keeps and cleans the records of a topic, and what is not in the bucket
  table      why records are not in the table of a topic
"""
