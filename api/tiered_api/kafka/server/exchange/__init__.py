"""One request and its reply, and all that a handler uses to serve it.

May import: as kafka.server

~ context             the broker, clock and counters that handlers reach
~ caller_caches       what each caller was allowed to use, for its next requests
  response_slot       protocols: a connection and its reply slots, as handlers see them
~ socket_writer       responses to the socket in few system calls
  error_codes         engine errors as Kafka error codes
~ bounded_tasks       bounded parallel work of one request, with a deadline
~ turns               fair shares of the event loop between clients
  latencies           request latencies by API
  acl_words           ACLs and filters of requests as words of rules
~ authorization       the refusal of requests about ACLs on a broker that knows none
~ inter_broker_auth   the check of requests that only brokers may send
~ token_requests      the check of requests about delegation tokens (KIP-48)
  advertised_brokers  brokers and addresses in replies to a client
~ led_partitions      look-up of partitions that this broker leads
  mutation_charges    changes of metadata against the quota of a client (KIP-599)
  leader_hints        the current leader inside error replies (KIP-951)
  metadata_fragments  encoded topics of Metadata replies, reused while unchanged
~ config_resources    resource names and edits of the config APIs
~ group_requests      requests to a group coordinator, with errors as codes
  id_patterns         patterns of transactional ids, matched in linear time (KIP-1152)
~ transaction_requests  requests to a transaction coordinator, with errors as codes
"""
