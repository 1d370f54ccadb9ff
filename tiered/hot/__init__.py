"""The log of one partition on local disk.

May import: compaction, config, producers, records

~ disk_log              the facade of one partition's log: append, read, roll, truncate, flush
  validation            checks of produced batches, and their offset and epoch stamps
~ batch_opening         the records of large batches, read by a thread before the batches are appended
~ log_writer            the active segment: append of batches, index entries, and rolls
~ log_reader            reads of whole batches as slices of segment files
~ flush                 one fsync shared by many callers, up to an offset
~ truncation            truncation at an offset, and restart of the log at another offset
  unsynced_truncations  a count of truncations that a power cut could still undo
  segments              segment facts in the segment checkpoint, look-up by offset, roll rules
~ segment_files         names of a partition's files, and the bounded set of open files
~ segment_index         look-ups in segments by offset, size and time, with indexes checked by CRC
~ log_segments          the segments of a log for readers: sizes, look-ups, data to upload
~ segment_view          closed segments, and the data that is uploaded with each
~ segment_deletion      deletion of the oldest segments: renamed at once, deleted after a delay
~ segment_swap          replacement of closed segments by a cleaned one, safe against a crash at any step
~ log_compaction        compaction of one log: how far it is clean, and cleans
~ interrupted_swaps     swaps that a crash has interrupted, finished before a load
~ log_cleaning          one clean of a log: two passes over its batches, then the swaps
~ transaction_index     aborted transactions of a log, by the segment that has their marker
  index                 offset index and time index as bytes in Kafka's formats
~ time_lookup           the first record at or after a timestamp
  retention             decision on segments to drop from local disk or for good
  leader_epochs         the lineage: which leader epoch wrote from which offset
~ producer_recovery     producer state at an offset, from snapshots and batch headers
~ producer_restore      producer state completed from a snapshot in the bucket (R5)
~ log_loader            the load of a partition's directory after a start
  log_recovery          the facts about one log that a start has before it reads it
  recovery              rules for how much of a directory is trusted after a start
~ unopened_log          the end of a log that cannot be opened because the disk is full (R4)
~ checkpoints           small text files in Kafka's checkpoint formats
  clean_shutdown        the entry by which a clean shutdown describes a small log
~ proof_file            the proof of what a start may believe of the data directory (R1)
~ suspect_marker        the file that marks a log that lost records to corruption (R1)
~ synced_logs           the logs that are proved whole at their fsynced end (R1)
  log_status            tells if a log takes writes, and why not
  traffic               counts of bytes and records that clients wrote and read
"""
