"""The Kafka protocol: messages, client and server.

May import: nothing

  protocol/  messages as tables, and their codecs; pure
  client/    a Kafka client over the Net and Clock ports
  server/    the Kafka listeners, and all request handlers
"""
