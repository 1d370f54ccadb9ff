"""The state of the whole cluster from any broker: health, topics, and where the records of a topic are.

May import: as http

~ cluster    the health of the cluster and its brokers
~ topics     all topics in short
~ storage    the tiers of a topic's partitions
~ segments   the segments of one partition in both tiers
~ metadata  the metadata log, and who was controller
~ groups     the groups that read a topic
~ tables     the Delta tables of topics in the warehouse
~ warehouse  reports on these tables, each by a process of its own
~ costs      use of the bucket by day, and what it costs
  prices     the operator's prices
~ usage_log  the record of that use, kept over restarts
~ group_lag  how far groups are behind, in records and in seconds
~ unread     the times of the oldest unread records
"""
