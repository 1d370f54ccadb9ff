"""The runtime of group coordinator shards over an internal topic.

May import: replication, metadata, groups

~ runtime         one loaded shard, its log, and callers until commit
~ loader          shard load from snapshot and log, then against the metadata (R5)
  snapshot        snapshot keys and bytes, and choice of the newest valid one
~ snapshot_store  snapshots in the bucket, and logs that must agree with them (R5)
~ snapshotter     the order: snapshot written, log truncated, older snapshots deleted
"""
