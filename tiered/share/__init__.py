"""Share partitions (KIP-932) as pure decisions: records that members take one by one, and the state.

May import: words

  state              states of records, and how two parts of the state of a share partition are joined
  in_flight          the in-flight records of a share partition, as runs of offsets
  partition          one share partition on the leader: locks, acknowledgements, deliveries (I39)
  requests           requests to a share coordinator about one share partition each, and its replies
  coordinator_shard  the share coordinator shard of one `__share_group_state` partition (I39)
  coordinator_state  the state of such a shard, as its log has it (I39)
  records            records of `__share_group_state` in Kafka's bytes
  limits             Kafka's limits for share groups
  sessions           share sessions: the partitions that a member fetches, and the epochs of its requests
  invariants         a check of all that must hold between steps
"""
