"""The Kafka listeners: connections, dispatch, and code that handlers share.

May import: broker, kafka.protocol.messages, kafka.server.produce

~ server              the listeners, their connection limits, and shutdown
~ connection          one connection: frames in, replies out in request order
~ dispatch            the handler for each request, and the outermost error boundary
  response_slot       protocols: a connection and its reply slots, as handlers see them
~ context             the broker, clock and counters that handlers reach
~ socket_writer       responses to the socket in few system calls
  request_buffers     pooled memory for large requests
  wrong_protocol      recognition of clients that speak another protocol
  error_codes         engine errors as Kafka error codes
~ bounded_tasks       bounded parallel work of one request, with a deadline
~ turns               fair shares of the event loop between clients
  latencies           request latencies by API
~ inter_broker_auth   the check of requests that only brokers may send
  advertised_brokers  brokers and addresses in replies to a client
~ led_partitions      look-up of partitions that this broker leads
  leader_hints        the current leader inside error replies (KIP-951)
  metadata_fragments  encoded topics of Metadata replies, reused while unchanged
~ config_resources    resource names and edits of the config APIs
~ group_requests      requests to a group coordinator, with errors as codes
  handlers/           one file for each API
  fetch/              fetch requests of consumers and followers
  produce/            produce requests
"""
