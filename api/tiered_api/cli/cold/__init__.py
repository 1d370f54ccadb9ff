"""The commands of `tiered cold`.

May import: cli, offline

~ commands  ls and cat: the bucket read without a broker
"""
