"""The broker as handlers see it, and what its replies are made of.

May import: as kafka.server

~ context             the broker, clock and counters that handlers reach
~ caller_caches       what each caller was allowed to use, for its next requests
  error_codes         engine errors as Kafka error codes
  advertised_brokers  brokers and addresses in replies to a client
~ led_partitions      look-up of partitions that this broker leads
~ replica_storage     what the disk has of a partition, and its segments in both tiers
  mutation_charges    changes of metadata against the quota of a client (KIP-599)
  leader_hints        the current leader inside error replies (KIP-951)
  metadata_fragments  encoded topics of Metadata replies, reused while unchanged
"""
