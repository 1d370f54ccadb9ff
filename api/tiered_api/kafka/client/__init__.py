"""A client of a Kafka cluster, for brokers, commands and simulations.

May import: config, quotas, records, security, kafka.protocol.messages

~ client            a cluster client over the Net and Clock ports
~ connection        one broker connection with pipelined requests
~ login             the login of a connection, of a user or of a broker
~ leader_routing    requests sent to partition leaders and group coordinators
~ producer          a producer: one batch in flight for each partition
~ consumer          a consumer: long polls at every leader
~ group_member      a member of a classic consumer group
~ consumer_member   a member of a consumer group, whose coordinator assigns (KIP-848)
~ group_offsets     committed offsets of groups: read, write, delete
~ transactions      transactional ids and open transactions: list, describe, abort
  transaction_calls requests between brokers about transactions, in Kafka frames
~ peers             the Peers protocol of the engine in Kafka frames
  error_sentences   error codes as sentences for people
  response_buffers  reusable memory for large responses
"""
