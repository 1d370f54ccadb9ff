"""The commands of `tiered group`.

May import: as cli

~ groups           list, describe, delete, offset-delete
~ consumer_groups  consumer groups (KIP-848) in the form of classic groups
~ unread           times of the next unread records of groups
~ seek             changes of committed offsets of an inactive group
"""
