"""The commands of `tiered cluster`.

May import: as cli

~ commands        info and config
~ brokers         brokers and unregister
~ drain           drain: everything into the bucket, so that all brokers and disks may go
~ health          health: the report on partitions and brokers
~ certificates    certificates: those of all listeners, and rejected ones
~ upgrade         upgrade: levels of the formats that brokers write, and the step to the newest (KIP-584)
~ secrets         rotate-secret: a new secret of the brokers
~ losses          losses: possibly lost records, and their acknowledgement
~ moves           reassign, rebalance, decommission (KIP-455)
~ throttle        replication throttles (KIP-73) and cordoned brokers (KIP-1066)
~ view            the brokers and topics of a cluster, for brokers and health
"""
