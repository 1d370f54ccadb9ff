"""The leader and follower replicas of this broker.

May import: coordinator, durability

~ hosted_replicas  the leader and follower replicas of this broker (R5, R6)
~ isr_updater      ISR change requests of all led partitions (R3)
~ suspects         brokers that may be gone, for Metadata replies during failover
"""
