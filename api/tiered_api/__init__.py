"""The network servers, the Kafka client and the command line.

May import: nothing

  kafka/  the Kafka protocol: messages, client, server
  health/ the verdict on a cluster
  explanation/ why things are as they are, as sentences
  http/   the HTTP server: REST v2, REST v3, records, operations
  cli/    the command `tiered`
"""
