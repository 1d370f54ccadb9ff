"""The REST v2 API.

May import: as http

~ consumers  consumer instances: create, subscribe, read, commit, delete
~ produce    produce to a topic or a partition
~ topics     topics, partitions, offsets and brokers
"""
