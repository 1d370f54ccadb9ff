"""The consumer instances of REST v2.

May import: as http

~ instances          creation, look-up and expiry of consumer instances
~ instance           one consumer instance: format, assignment, commits
  positions          the positions of an instance, and those that its group does not have
~ member             the group membership of an instance
~ subscriptions      the topics that subscriptions and patterns match
  topic_patterns     regular expressions with linear-time matching
~ reading            one read over all assigned partitions
~ coordinator_calls  requests to a group coordinator that may still be loading
"""
