"""The REST v3 API.

May import: as http

~ clusters         the cluster and its brokers
~ acls             ACLs: list, add, remove
~ topics           topics: list, create, describe, add partitions, delete
~ partitions       partitions, their offsets and their replicas
~ configs          settings of topics and brokers
~ config_shapes    settings as REST v3 objects, with their sources
~ groups           consumer groups, members, assignments and lag
~ produce          single records, record streams and record batches
~ fast_produce     the short path for single records with a known header
~ streaming        the produce stream: JSON values in, reports out
~ produce_reports  the report on each produced record
~ shapes           objects of REST v3 with metadata and links
"""
