"""The slot of a request: its reply in order, its bounded tasks and its latency.

May import: as kafka.server

  request_order  the requests of one connection that may overlap
  response_slot  protocols: a connection and its reply slots, as handlers see them
~ socket_writer  responses to the socket in few system calls
~ bounded_tasks  bounded parallel work of one request, with a deadline
  latencies      request latencies by API
"""
