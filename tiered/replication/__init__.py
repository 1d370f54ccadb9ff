"""The leader and the followers of one partition.

May import: cold, wal

  leader_state         ISR, high watermark, epoch start, positions of the followers (R2, R3, R5, R6)
~ become_leader        the start of a leader epoch, reconciled with the manifest (R5)
~ cold_history         leader epochs and producers below the cold end offset (R5)
~ chain_history        records in write-ahead chains, appended to the log of a new leader (R5, R7)
~ leader_replica       the leader replica: append, replication, truncation, commit (R2, R6, I13)
~ append_admission     the conditions under which the leader replica takes records and confirms them (R3, R6)
~ leader_transactions  verification and markers of transactions at the leader replica (KIP-890)
~ record_deletion      deletion of records at the leader replica, as DeleteRecords asks for it (I22)
~ unified_log          the log of a partition, hot and cold: offsets, sizes, what waits for upload
  replica_reads        the protocol of reads from either replica: `LeaderReads`, `FollowerReads`
~ led_partitions       the leader replicas as a protocol
~ leader_reads         reads from the leader replica, hot or cold, and parked readers (I4)
~ follower_replica     the follower replica: its log, changed by the leader's replies
  follower_step        a follower's next action after one reply of the leader
~ follower_reads       reads from a follower replica by nearby consumers (KIP-392)
  divergence           the leader's check of a follower's history (KIP-595)
~ replica_fetcher      the fetchers of a broker: one for each leader
  replica_selector     the choice of a replica in the consumer's rack (KIP-392)
  replication_quota    replication throttles by topic and broker (KIP-73)
~ unstored_batches     the log as its write-ahead chain sees it
  purgatory            parked callers, by the offset that they wait for
  read_result          results of reads by consumers and by followers
~ offset_lookup        offsets by name, by timestamp or by leader epoch
~ disk_state           the data directory: in use, full or dead
~ cold_tier            the parts of the cold tier that all partitions share
"""
