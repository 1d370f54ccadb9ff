"""Acts of operators from any broker: Kafka's admin requests, judged as those of the caller.

May import: as http

~ requests  Kafka's requests to any broker in the caller's name
~ groups    committed offsets are reset with a preview, groups are deleted
"""
