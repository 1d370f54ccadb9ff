"""One broker process: wiring and order of its parts, no rules of its own.

May import: controller, coordinator, groups, transactions

~ broker              start, run and stop of one broker (R1, R5, R6, M5)
~ real_world          the five real ports, from the broker's settings
~ encryption          TLS of this broker, and the network between brokers
~ data_directory      the broker's own files: meta.properties, boot mark, clean mark
  metadata_position   the note of what the metadata log had reached: it tells a bucket that went back
~ startup_retry       startup retries while the object store is unreachable
~ duplicate_check     the check for another live process of this broker (R6)
~ registration        registration of an incarnation, and of its addresses (R1, R6)
~ hosted_replicas     the leader and follower replicas of this broker (R5, R6)
~ led_partitions      the leader replicas as a protocol
~ replica_event_handlers  the parts that act on events of leader replicas
~ log_store           the open logs of this broker
~ possible_losses     partitions whose logs may lack records, until the controller knows (R1, R4)
~ loss_reporter       reports of possible losses, and trust in the data directory
~ isr_updater         ISR change requests of all led partitions (R3)
~ awaited_ends        log end offsets that leader elections wait for (R4)
~ disk_reports        reports of a full disk to the controller
~ stored_ends         notes of partitions that lie completely in the bucket
~ tiering             the loop of uploads, local deletion, expiry and garbage collection
  topic_turns         partitions that wait for a pass, in turns of their topics
~ housekeeping        timed rolls, fsyncs, checkpoints and file deletion
~ object_deletion     timed deletion of expired objects, and of the objects of deleted topics
~ store_watch         timed requests to the bucket: end of an outage, newer controller
~ group_coordinators  the group coordinators of the led `__consumer_offsets` partitions
~ group_snapshots     the snapshots of groups in the bucket: keys and metrics
~ transaction_coordinators  the transaction coordinators of the led `__transaction_state` partitions
~ transaction_snapshots  the snapshots of transactional ids in the bucket: keys and metrics
~ transaction_markers  markers of decided transactions, sent to the leaders of their partitions (I14)
~ transaction_verification  queries to the coordinator of a transaction about its partitions
~ marker_writer       markers of transactions, written to the partitions of this broker
~ internal_topic      an internal topic, created on first need
~ producer_ids        producer ids from blocks that the controller allocates
~ suspects            brokers that may be gone, for Metadata replies during failover
~ log_cleaner         compaction on this broker's disk, and in the bucket as the leader, the dirtiest log first
~ clean_throttle      the pace of cleans: bytes, requests, and the delay that they cause
~ retention_clock     the retention time, corrected if this broker's clock is fast
~ late_transactions   open transactions that hold back a last stable offset for too long
~ orphaned_transactions  the end of transactions that no coordinator knows any more
~ lost_markers        pending offsets of transactions whose marker was lost with the disks
  audit_log           logins and refused operations as lines of JSON
  client_quotas       what each client has used of its quotas on this broker (I28)
  pots                the pots that clients share: their levels, and reports of refusals
~ token_validator     bearer tokens of clients, and the public keys that check them
  delegation_tokens   delegation tokens (KIP-48): HMACs, and credentials of their bearers
  authorization       the rights of callers under the ACLs of the image
~ health              the health report of this broker
~ cluster_metrics     cluster gauges under the names of Kafka's JMX exporter
~ topic_metrics       metrics by topic, under the names of Kafka's JMX exporter
~ process_metrics     process metrics under the names of Prometheus clients
"""
