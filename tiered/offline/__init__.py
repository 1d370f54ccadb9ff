"""The bucket without a broker, for tools and Spark.

May import: cold, metadata

~ bucket     an open bucket: its metadata, manifests, and a cold reader
~ keys_in_use  the keys that encrypt the objects
~ object_check  missing, damaged and unreferenced objects of topics
~ rewrite    objects encrypted anew under the active key
~ committed  committed batches of a partition, by the transaction indexes and producer snapshots of its segments
"""
