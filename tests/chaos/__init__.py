"""Three real brokers and real clients under faults."""
