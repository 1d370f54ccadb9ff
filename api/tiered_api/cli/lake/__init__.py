"""The commands `tiered load`, `verify` and `sql`.

May import: cli.broker

~ commands  the commands of the optional Spark package
"""
