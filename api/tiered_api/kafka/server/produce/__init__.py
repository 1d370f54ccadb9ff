"""The produce requests: frames and record errors.

May import: replication, kafka.protocol, security

  frames         Produce requests and replies, encoded by hand
  produce_cache  what one caller has produced to, by the bytes that name it
  record_errors  the faulty records of a rejected batch (KIP-467)
~ verification   the check of transactional records before they begin a transaction (KIP-890)
~ sequence_gaps  batches behind a refused or missing batch of their producer
"""
