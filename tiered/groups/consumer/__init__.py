"""Consumer groups (KIP-848) as pure decisions: the coordinator computes the assignment, and each member follows it.

May import: as groups

  assignment         partitions of a member, and the interface of assignors
  assignors          the assignors that a member may name
  range_assignor     the assignor `range`
  uniform_assignor   the assignor `uniform`
  reconciliation     a member's way from its present assignment to its target (I17)
  epochs             epochs of group, target and member, and the state of the group
  records            records of consumer groups in Kafka's bytes
  group              one group as its records give it
  member_step        one step of a member that joins or stays, by either protocol
  heartbeat          ConsumerGroupHeartbeat: joins, steps to the target, leaves
  classic_members    members of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup
  migration          groups that change their protocol while members are in them
  sessions           sessions and rebalance timeouts of members, and their removal
  fencing            fencing of commits and fetches of offsets by the member epoch (I18)
  admin              description, listing and deletion of consumer groups
  classic_view       a consumer group as DescribeGroups shows a classic one
  invariants         a check of all that must hold between decisions
"""
