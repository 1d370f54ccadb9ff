"""A topic's log for readers: bounds and record batches, from the bucket or from brokers.

May import: delta, clients, offline

  offsets       the options that bound a read
  plan          the even splits of a read
~ bucket        topics, bounds and batches from the bucket, without a broker
~ broker        a topic as a running broker serves it, over HTTP
~ broker_http   requests to the brokers of a cluster: redirects, waits for a busy broker
~ login         TLS and the login of a broker's HTTP, by the properties of Kafka's clients
  rows          record batches as Arrow columns
~ log_tail      records that a table does not have yet, from the bucket or a broker
"""
