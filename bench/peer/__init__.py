"""Our broker beside Apache Kafka: the same client, the same flags, leg by leg. `python -m bench.peer --help`."""
