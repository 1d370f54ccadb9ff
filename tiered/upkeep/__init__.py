"""Timed work on partitions: uploads, deletion, cleaning, rolls and fsyncs.

May import: hosting

~ tiering          the loop of uploads, local deletion, expiry and garbage collection
  topic_turns      partitions that wait for a pass, in turns of their topics
~ housekeeping     timed rolls, fsyncs, checkpoints and file deletion
~ chain_deletion   the deletion of write-ahead chains: the own one, and those of dead brokers (I38)
~ object_deletion  timed deletion of expired objects, and of the objects of deleted topics
~ store_watch      timed requests to the bucket: end of an outage, newer controller
~ log_cleaner      compaction on this broker's disk, and in the bucket as the leader, the dirtiest log first
~ clean_throttle   the pace of cleans: bytes, requests, and the delay that they cause
~ retention_clock  the retention time, corrected if this broker's clock is fast
"""
