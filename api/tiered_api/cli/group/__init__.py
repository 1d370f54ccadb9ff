"""The commands of `tiered group`.

May import: as cli

~ groups  list, describe, delete, offset-delete
~ seek    changes of committed offsets of an inactive group
"""
