"""The leader and follower replicas of this broker.

May import: coordinator, durability, registry

~ hosted_replicas  the leader and follower replicas of this broker (R5, R6)
~ chains           the write-ahead chains: the own one, and those that this broker takes over (R7, I38)
~ replica_events   the events of leader replicas and of their roles, for the rest of the broker
~ openings         the leaderships that begin with records from chains: their order and progress
~ isr_updater      ISR change requests of all led partitions (R3)
~ conditional_append  an append on the condition that the log ends at an offset (I37)
  record_frames    the schemas that the records of a batch name
~ record_judge     verdicts on records by a state of the schema registry
~ schema_validation  the validation of produced records by the schema registry
~ suspects         brokers that may be gone, for Metadata replies during failover
"""
