"""One broker process: wiring and order of its parts, no rules of its own.

May import: coordination, upkeep

~ broker                  start, run and stop of one broker (R1, R5, R6, M5)
~ real_world              the five real ports, from the broker's settings
~ encryption              TLS of this broker, and the network between brokers
~ startup_retry           startup retries while the object store is unreachable
~ duplicate_check         the check for another live process of this broker (R6)
~ registration            registration of an incarnation, and of its addresses (R1, R6)
~ replica_event_handlers  the parts that act on events of leader replicas
~ figures                 health and figures of this broker for an overview
~ fenced_brokers          brokers that the controller has fenced, and since when
~ partition_troubles      since when partitions lack a leader or replicas in sync
~ request_traces          the slowest requests, while they are traced
~ trace_exporter          traced requests on their way to a collector of OpenTelemetry
~ otlp_spans              traced requests as spans of OpenTelemetry, by its SDK
~ health                  the health report of this broker
~ partition_report        the state of one partition in plain words
  stored_segments         the segments of both tiers, and why the disk still has each
~ cluster_metrics         cluster gauges under the names of Kafka's JMX exporter
~ topic_metrics           metrics by topic, under the names of Kafka's JMX exporter
~ process_metrics         process metrics under the names of Prometheus clients
"""
