"""The engine: knows logs, tiers and replicas, and no wire protocol."""

__version__ = "0.1.0"
