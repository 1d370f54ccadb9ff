"""The commands `tiered load`, `verify`, `sql` and `table`.

May import: cli.broker, pyspark_tiered

~ commands        the commands of the optional Spark package
~ sql             sql: a query or the shell
~ http_place      the broker whose HTTP has the newest records
~ tables          table ls, describe, history and diff
~ metrics_server  the metrics of a load that follows topics, over HTTP
"""
