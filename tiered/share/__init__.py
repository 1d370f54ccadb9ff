"""Share partitions (KIP-932) as pure decisions: records that the members of a share group take one by one.

May import: words

  state         states of records, and how two parts of the state of a share partition are joined
  in_flight     the in-flight records of a share partition, as runs of offsets
  partition     one share partition on the leader: locks, acknowledgements, deliveries (I39)
  limits        Kafka's limits for share groups
  invariants    a check of all that must hold between steps
"""
