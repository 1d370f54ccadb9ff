"""The engine of the log service: logs, replicas, segments in the bucket, metadata; no wire protocol.

May import: nothing

Files at this level are words, which every package may use:

~ errors         the four error families, and Kafka's table of error codes
  ids            names of things: topic partition, partition id, broker incarnation, epochs
~ ports          the five ports: Clock, Rng, Disk, ObjectStore, Net (M1, M4)
  value          frozen dataclasses for mypy that are quick to make
  metrics        counters, gauges and histograms, rendered as Prometheus text
  shard          the shape of replicated state behind a log: decide, append, commit, reply
  record_fields  primitive fields of the records of internal topics
  networks       the network that an address counts with
  deadlines      a heap of named deadlines that can move
  time_text      times and spans of time as people read them
~ peers          calls between brokers as plain values, and the Peers protocol
~ log_limiter    a limit for repeated warnings in the broker's log
~ fair_slots     a bounded number of slots for expensive work, taken in turn by its owners
~ thread_pool    bounded worker threads for blocking calls, each call with a deadline
~ spending       the owner of the time that work takes, of the event loop and of threads
~ request_trace  the phases of one traced request
~ subtask        work in its own task, whose error never hides a cancellation

Packages, each above those that it may import:

  security/      principals, their proofs and their rights, as pure decisions
  config/        settings of brokers and topics
  records/       record batch format v2, in C and in Python
  compaction/    log compaction as pure decisions
  system/        the real Clock, Rng, Net and Disk of a machine
  clients/       the connection of a client, by the properties of Kafka's clients
  object_store/  implementations of the ObjectStore port, and their wrappers
  producers/     the producers of one partition, as pure decisions
  hot/           the log of one partition on local disk
  wal/           write-ahead chains in the bucket: records before their segments close
  cold/          the segments of one partition in the bucket
  replication/   the leader and the followers of one partition
  registry/      the schema registry as pure decisions
  quotas/        client quotas as pure decisions
  metadata/      the replicated cluster metadata
  controller/    the active controller, and the standby controllers
  groups/        consumer groups as pure decisions
  share/         share partitions as pure decisions
  transactions/  transactions as pure decisions
  coordinator/   the runtime of coordinator shards over an internal topic
  access/        callers of a broker: logins, rights, quotas, shares, the audit log
  durability/    the data directory of a broker, and reports of what may be lost
  hosting/       the replicas of a broker
  coordination/  the coordinators of a broker, and the markers of their transactions
  upkeep/        timed work on partitions: uploads, deletion, cleaning
  broker/        one broker process: wiring and order
  offline/       the bucket without a broker
  testing/       brokers inside a test suite; it stands above the servers
"""

__version__ = "0.1.0"
