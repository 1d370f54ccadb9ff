"""The commands of `tiered explain`: why things are as they are, by the HTTP of a broker.

May import: cli.lake

~ commands     topic, partition, segment, fetch and group
~ table        table, also of a warehouse that no broker knows
~ trace        the slowest requests of a broker
~ http_of_brokers  the HTTP of a broker by its Kafka address, for --brokers
~ http_client  GET requests to the HTTP of brokers, with the login of the command
"""
