"""The commands `tiered load`, `verify` and `sql`.

May import: cli.broker, pyspark_tiered

~ commands  the commands of the optional Spark package
"""
