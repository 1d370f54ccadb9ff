"""Share groups (KIP-932) as pure decisions: members, and the partitions that each of them reads.

May import: as groups

  simple_assignor    the assignor of share groups
  records            records of share groups in Kafka's bytes
  group              one share group as its records give it
  heartbeat          ShareGroupHeartbeat: joins, new assignments, leaves
  state_partitions   the partitions that have share state, and those that get it now
  admin              description, listing and deletion of share groups
  invariants         a check of all that must hold between decisions
"""
