"""The commands of `tiered profile`.

May import: cli

~ commands  create, set, list, show, current, use, clear and remove
"""
