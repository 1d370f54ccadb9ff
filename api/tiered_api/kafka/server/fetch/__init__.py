"""The fetch requests of consumers and followers.

May import: as kafka.server

  frames                 consumer Fetch requests and replies, encoded by hand
  request_cache          decoded Fetch requests, reused by later similar requests
~ delayed_fetch          one consumer fetch until enough records are there
~ cold_reads             loads of cold batches, kept for the next fetch
~ replica_handler        the handler of follower fetches (R6)
  replica_frames         follower Fetch requests and replies, version 17
~ delayed_replica_fetch  one follower fetch until enough records are there
"""
