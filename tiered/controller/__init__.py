"""The active controller: its decisions, its runtime, and the standby controllers.

May import: metadata

  controller             the controller as a shard: decide and apply (M5)
  requests               requests to the controller, with the reply type of each
  request_codec          controller requests and replies as bytes between brokers
  decision               a decision of the controller: changes and a reply
~ runtime                the runtime of the controller's shard: group commit, replies after commit
  topics                 decisions about topics: create, delete, configure, add partitions
  brokers                decisions about brokers: register, unregister, configure (R1)
  adoption               replicas that a process takes over from another one of its machine (I36)
  leaders                decisions about leaders and ISRs over all partitions concerned
  features               decisions about levels of features (KIP-584)
  acls                   decisions about ACLs
  quorum                 the controller and the brokers that follow it, as Kafka's tools show them
  broker_secrets         the decision about a new secret of brokers
  delegation_tokens      decisions about delegation tokens (KIP-48)
  group_configs          decisions about settings of groups
  client_quotas          decisions about client quotas (KIP-546)
  change_costs           the changes for which the caller of a request pays (KIP-599)
  change_time            the time of the event loop that a change costs this broker
  change_descriptions    what the request of a caller changed, in Kafka's words, for the audit log
  scram_credentials      decisions about SCRAM credentials of users (KIP-554)
  partition_transitions  leader, ISR and ELR transitions of one partition (R1 to R4, R7, I36)
  partition_health       leaderless, under-replicated and under-min-ISR partitions
  partition_limits       limits on partitions of a cluster and replicas of a broker
  isr_changes            committed ISR changes as lines for the broker's log
  placement              replica placement for new partitions, over brokers and racks
  reassignment           decisions about partition reassignments (KIP-455)
  reassignment_planner   the fewest replica moves that drain a broker or balance all
  missing_replicas       the plan that adds replicas to topics created with too few brokers
  preferred_leaders      the plan that returns leadership to preferred leaders
~ balancer               carries out these plans, each after a pause
  heartbeats             contact times of brokers, and session timeouts
  clock_skew             differences between the wall clocks of brokers and the controller's
  suspicion              brokers that are silent in every way, which are fenced early (I19)
  false_alarms           brokers that were fenced and only slow, which get more time before the next fence (I19)
~ silence_watch          requests of the controller to silent brokers
~ controller_queries     requests of a standby that lost the controller (M4)
~ active                 the active controller during one controller epoch
~ standby                a standby controller: fetches the metadata log (M3, M4, R6)
~ member_view           the cluster as one broker knows it: image, settings, the broker itself
~ channel                requests to the controller, in this process or on another broker
~ member                 this broker's role: active controller or standby (R6)
"""
