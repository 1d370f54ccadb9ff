"""The commands `tiered load`, `verify`, `sql` and `table`, and `tiered topic describe-storage`.

May import: cli.broker, pyspark_tiered

~ commands        the commands of the optional Spark package
~ sql             sql: a query or the shell
~ http_place      the broker whose HTTP has the newest records
~ tables          table ls, describe, history and diff
~ storage         topic describe-storage: the tiers, and what is loaded into tables
~ metrics_server  the metrics of a load that follows topics, over HTTP
"""
