"""The connection of a client, as the properties of Kafka's clients say it.

May import: config, system

~ properties  the properties that say how a connection is made, from a file or from options
~ tokens      tokens for OAUTHBEARER, from a token server or from a file
"""
