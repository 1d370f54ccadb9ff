"""The rights that requests of the Kafka protocol need: one table, and what remains of a request without them.

May import: as kafka.server

~ rights             the rights of the caller of one request
~ verdict            what becomes of a request: it is refused, or parts of it are
~ topics             requests about topics
~ groups             requests to coordinators of groups and transactions
~ consumer_groups    requests about consumer groups (KIP-848)
~ cluster            requests about the cluster
~ share_state        requests about the state of share partitions
~ operations         the table: what each API needs
~ authorization      the refusal of requests about ACLs on a broker that knows none
~ inter_broker_auth  the check of requests that only brokers may send
"""
