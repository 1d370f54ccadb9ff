"""The health of a cluster: the verdict that commands and HTTP give.

May import: metadata, kafka.client

  view     a cluster at one moment: its brokers with their states, and its topics
  verdict  the verdict on a cluster, with its reasons
"""
