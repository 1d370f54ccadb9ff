"""The runtime of coordinator shards over an internal topic; `tiered.shard` has the shape of what it runs.

It knows neither groups nor transactions.

May import: replication, metadata

~ runtime         one loaded shard, its log, and its callers until commit
~ partition       one led partition: its coordinator, and the requests that wait for its load
~ host            the coordinators of a broker for one internal topic: load, resign, deadlines
  routing         the partition of an internal topic that coordinates a key
~ loader          loads a shard from snapshot and log
  log_records     records as batches of the log and of snapshots
  snapshot        keys and bytes of snapshots, and the choice of one to start from
~ snapshot_store  snapshots in the bucket, and logs that must agree with them (R5)
~ snapshotter     writes a snapshot, then deletes the log below it, then older snapshots
"""
