"""The bucket without a broker, for tools and Spark.

May import: cold, metadata

~ bucket  an open bucket: its metadata, manifests, and a cold reader
"""
