"""The Kafka listeners: connections and the dispatch of requests to handlers.

May import: broker, security, kafka.protocol.messages, kafka.server.produce

~ server           the listeners, their connection limits, and shutdown
~ connection       one connection: frames in, replies out in request order
~ login            the login of connections, and their state before it
~ acting           clients for whom a broker sends requests (I29)
~ tracing          the phases of requests, while they are traced
~ metering         the charge of requests against client quotas, and the pauses of clients (I28)
~ quota_lines      requests that wait for the request time of their client (I28)
~ dispatch         the handler for each request, and the outermost error boundary
  request_buffers  pooled memory for large requests
  wrong_protocol   recognition of clients that speak another protocol
  context/         the broker as handlers see it, and what its replies are made of
  slots/           the slot of a request: its reply in order, its bounded tasks and its latency
  requests/        parts of requests that several handlers share
  handlers/        one file for each API
  rights/          the rights that requests need
  fetch/           fetch requests of consumers and followers
  produce/         produce requests
"""
