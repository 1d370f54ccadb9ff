"""The coordinators on this broker, and the markers of their transactions.

May import: groups, hosting, share, transactions

~ group_coordinators        the group coordinators of the led `__consumer_offsets` partitions
  offset_corrections        the corrections that loaded groups need (R5)
~ snapshot_stores           the snapshots of groups and transactional ids in the bucket: keys and metrics
~ transaction_coordinators  the transaction coordinators of the led `__transaction_state` partitions
~ share_coordinators        the share coordinators of the led `__share_group_state` partitions (I39)
~ transaction_markers       markers of decided transactions, sent to the leaders of their partitions (I14)
~ transaction_verification  queries to the coordinator of a transaction about its partitions
~ marker_writer             the one way of a marker into a partition of this broker, with its reason
  topic_regexes             regular expressions of consumer groups over the names of topics
~ internal_topic            an internal topic, created on first need
~ producer_ids              producer ids from blocks that the controller allocates
~ offsets_beyond_end        committed offsets above the end of a partition that lost records
~ late_transactions         open transactions of led partitions that no timeout permits any longer
~ orphaned_transactions     the end of transactions that no coordinator knows any more
"""
