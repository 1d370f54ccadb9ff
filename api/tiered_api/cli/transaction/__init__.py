"""The commands of `tiered transaction`.

May import: as cli

~ commands  list, describe, abort, find-hanging
"""
