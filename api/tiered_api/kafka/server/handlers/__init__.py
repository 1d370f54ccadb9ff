"""The request handlers, one file for each API key.

May import: as kafka.server

~ add_offsets_to_txn             AddOffsetsToTxn (25): the offsets of a group join a transaction
~ add_partitions_to_txn          AddPartitionsToTxn (24): partitions join a transaction, or are verified (KIP-890)
~ alter_client_quotas            AlterClientQuotas (49): sets and removes quotas (KIP-546)
~ alter_configs                  AlterConfigs (33): replaces the settings of a resource
~ alter_partition_reassignments  AlterPartitionReassignments (45): starts or cancels reassignments (KIP-455)
~ alter_user_scram_credentials   AlterUserScramCredentials (51): sets and removes credentials of users (KIP-554)
  api_versions                   ApiVersions (18): supported APIs and versions (KIP-511)
~ consumer_group_describe        ConsumerGroupDescribe (69): state and members of consumer groups
~ consumer_group_heartbeat       ConsumerGroupHeartbeat (68): the heartbeat of a member of a consumer group
~ create_acls                    CreateAcls (30): adds ACLs, each with its own error
~ create_delegation_token        CreateDelegationToken (38): a token of a principal (KIP-48)
~ create_partitions              CreatePartitions (37): adds partitions to topics
~ create_topics                  CreateTopics (19): creates topics, each with its own error
~ delete_acls                    DeleteAcls (31): removes the ACLs that filters choose
~ delete_groups                  DeleteGroups (42): deletes groups without members (KIP-229)
~ delete_records                 DeleteRecords (21): moves log start offsets forward
~ delete_share_group_state       DeleteShareGroupState (86): removes share partitions
~ delete_topics                  DeleteTopics (20): deletes topics by name or id (KIP-516)
~ describe_acls                  DescribeAcls (29): the ACLs that a filter chooses
~ describe_client_quotas         DescribeClientQuotas (48): the quotas of entities that a filter chooses (KIP-546)
~ describe_cluster               DescribeCluster (60): brokers of the cluster (KIP-700)
~ describe_configs               DescribeConfigs (32): settings and their sources
~ describe_delegation_token      DescribeDelegationToken (41): tokens that the caller may see (KIP-48)
~ describe_groups                DescribeGroups (15): state and members of groups
~ describe_log_dirs              DescribeLogDirs (35): size of each partition on disk
~ describe_producers             DescribeProducers (61): producer state of partitions (KIP-664)
~ describe_quorum                DescribeQuorum (55): the controller, and the brokers that follow it (KIP-595)
~ describe_topic_partitions      DescribeTopicPartitions (75): topics in pages, with ELR (KIP-966)
~ describe_transactions          DescribeTransactions (65): the state of transactional ids (KIP-664)
~ describe_user_scram_credentials  DescribeUserScramCredentials (50): mechanisms of users (KIP-554)
~ elect_leaders                  ElectLeaders (43): preferred and unclean elections (KIP-460)
~ end_txn                        EndTxn (26): commits or aborts a transaction
~ expire_delegation_token        ExpireDelegationToken (40): the expiry of a token, or its end (KIP-48)
~ fetch                          Fetch (1): record batches for consumers
~ find_coordinator               FindCoordinator (10): the coordinators of groups and of transactional ids
~ heartbeat                      Heartbeat (12): the heartbeat of a group member
~ incremental_alter_configs      IncrementalAlterConfigs (44): changes single settings (KIP-339)
~ init_producer_id               InitProducerId (22): an id and an epoch for a producer, with or without transactions
~ initialize_share_group_state   InitializeShareGroupState (83): begins share partitions (KIP-932)
~ join_group                     JoinGroup (11): a member joins a group
~ leave_group                    LeaveGroup (13): members leave a group
~ list_config_resources          ListConfigResources (74): resources that have settings (KIP-1142)
~ list_groups                    ListGroups (16): groups that this broker coordinates
~ list_offsets                   ListOffsets (2): offsets by name or timestamp
~ list_partition_reassignments   ListPartitionReassignments (46): reassignments under way (KIP-455)
~ list_transactions              ListTransactions (66): the transactional ids that this broker coordinates (KIP-664)
~ metadata                       Metadata (3): brokers, topics and partition leaders
~ offset_commit                  OffsetCommit (8): commits offsets of a group
~ offset_delete                  OffsetDelete (47): deletes committed offsets (KIP-496)
~ offset_fetch                   OffsetFetch (9): committed offsets of groups
~ offset_for_leader_epoch        OffsetForLeaderEpoch (23): the end offset of a leader epoch
~ produce                        Produce (0): record batches from producers
~ read_share_group_state         ReadShareGroupState (84): the state of share partitions, for their leader
~ read_share_group_state_summary ReadShareGroupStateSummary (87): epochs and start offsets of share partitions
~ renew_delegation_token         RenewDelegationToken (39): a later expiry of a token (KIP-48)
~ sync_group                     SyncGroup (14): assignments of group members
~ tiered_acknowledge             TieredAcknowledge (20004): acknowledges possible losses
~ tiered_append_at               TieredAppendAt (20010): an append if the log ends at an offset
~ tiered_compact                 TieredCompact (20005): facts of compaction, and a clean now
~ tiered_follow                  TieredFollow (20001): entries of the metadata log for another broker
~ tiered_heard                   TieredHeard (20003): this broker's view of the controller
~ tiered_metrics                 TieredMetrics (20008): the metrics of this broker
~ tiered_quota_use               TieredQuotaUse (20009): use of quotas at another process of this machine
~ tiered_rotate_secret           TieredRotateSecret (20007): the next secret of the brokers
~ tiered_submit                  TieredSubmit (20002): a request forwarded to the controller
~ txn_offset_commit              TxnOffsetCommit (28): offsets of a group, as a part of a transaction
~ unregister_broker              UnregisterBroker (64): removes a broker for good (KIP-631)
~ update_features                UpdateFeatures (57): levels of features (KIP-584)
~ write_share_group_state        WriteShareGroupState (85): changes of share partitions, by their leader
~ write_txn_markers              WriteTxnMarkers (27): markers of decided transactions, and aborts by operators
"""
