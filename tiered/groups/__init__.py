"""Groups of consumers as pure decisions: the classic protocol here, KIP-848 in `consumer`.

May import: quotas

  shard              the group coordinator shard of one `__consumer_offsets` partition
  requests           requests to a group coordinator, its replies and its events
  decision           the state and the collected changes of one decision
  classic            one classic group: states, members, permitted transitions
  holders            the memory of each group, and the holder that it counts for
  member             one member of a classic group
  join               JoinGroup: new members, returning members, static members
  rebalance          a group's way from one generation to the next
  member_requests    SyncGroup, Heartbeat and LeaveGroup
  offsets            commit, fetch, deletion and correction of offsets
  expiry             expiry of committed offsets (KIP-211)
  admin              description, listing and deletion of groups
  subscription       the bytes of subscriptions and assignments of classic consumers
  pending_offsets    offsets that open transactions have written
  log_state          the committed state of a shard, as its log has it
  records            records of `__consumer_offsets` in Kafka's bytes
  string_lengths     length checks of strings for these records
  limits             Kafka's limits for groups
  consumer/          consumer groups (KIP-848)
  share/             share groups (KIP-932)
  invariants         a check of all that must hold between decisions
"""
