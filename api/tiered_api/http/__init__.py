"""The HTTP server, with all that it serves.

May import: broker, registry, health, explanation, kafka.client, kafka.server

~ operations   health, metrics, broker identity, state of a partition
  openmetrics      the metrics in the form of OpenMetrics
  machine_metrics  the metrics of all processes of a machine as one text
~ request_traces  the slowest requests with their phases
~ groups       consumer groups of any coordinator
~ group_lags   consumer lag metrics under the names of kafka_exporter
~ audit_topic  the audit log as a topic
  server/      the listener and the table of routes
  exchange/    one request and its response: context, limits, errors
  transactions/ transactions of one request
  partitions/  reads and writes of any partition from any broker
  consumers/   consumer instances of REST v2
  v2/          REST v2
  v3/          REST v3
  registry/    the schema registry, with the addresses of Confluent's API
  admin/       acts of operators from any broker
  iceberg/     the read-only catalogue of Iceberg tables
  overview/    the state of the whole cluster from any broker
  explanations/ why a partition, a group, a topic or a table is as it is
  console/     the page for browsers
"""
