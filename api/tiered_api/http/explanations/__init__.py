"""The answers to "why": each route gathers the facts of an explanation, and any broker does that for the cluster.

May import: as http

~ partitions    why a partition or a segment is as it is, and what a fetch gets
~ outages       an outage of the bucket, as the brokers see it
~ transactions  the transaction that holds a partition, by its coordinator
~ groups        why a group does not read, or is behind
~ topics        what becomes of the records of a topic
~ tables        why records are not in a table
"""
