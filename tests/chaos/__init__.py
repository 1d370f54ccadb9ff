"""Three real brokers, real clients, and what goes wrong."""
