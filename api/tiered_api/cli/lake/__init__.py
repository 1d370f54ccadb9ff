"""The commands `tiered load`, `verify`, `sql` and `table`.

May import: cli.broker, pyspark_tiered

~ commands        the commands of the optional Spark package
~ metrics_server  the metrics of a load that follows topics, over HTTP
"""
