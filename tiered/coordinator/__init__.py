"""Group coordinators: run the group shards over the partitions of an internal topic.

May import: replication, metadata, groups

~ runtime         one loaded shard, its log, and its callers until commit
~ loader          loads a shard from snapshot and log, then corrects offsets (R5)
  snapshot        keys and bytes of snapshots, and the choice of one to start from
~ snapshot_store  snapshots in the bucket, and logs that must agree with them (R5)
~ snapshotter     writes a snapshot, then deletes the log below it, then older snapshots
"""
