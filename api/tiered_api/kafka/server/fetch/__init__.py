"""The fetch requests of consumers and followers.

May import: as kafka.server

  frames                 consumer Fetch requests and replies, encoded by hand
  request_cache          decoded Fetch requests, reused by later similar requests
~ fetch_context          what the consumer fetches of one broker share
~ read_sources           look-up of replicas that consumers read from (KIP-392)
~ parking                reply slot, deadline and count of parked fetches
~ delayed_fetch          one consumer fetch until enough records are there
~ large_fetch            a consumer fetch of many partitions, served in pieces
~ rereads                the next reads of parked consumer fetches
~ cold_reads             loads of cold batches, kept for the next fetch
~ replica_handler        the handler of follower fetches (R6)
  replica_frames         follower Fetch requests and replies, version 17
~ follower_states        what is known of the brokers that fetch as followers (R6)
~ delayed_replica_fetch  one follower fetch until there is something to send
"""
