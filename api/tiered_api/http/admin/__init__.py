"""Acts of operators from any broker: Kafka's admin requests, judged as those of the caller.

May import: as http

~ requests  Kafka's requests to any broker in the caller's name
~ topics    records are deleted, logs cleaned, leaders elected, replicas moved
~ transactions  transactional ids, open transactions of a topic, and their abort
~ lockout   the refusal of an act after which nobody may change ACLs and users
~ users     the users that log in with SCRAM
~ quotas    the quotas of users, client ids and addresses
~ groups    committed offsets are reset with a preview, groups are deleted
"""
