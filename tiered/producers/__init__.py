"""The producers of one partition: their last batches, their open transactions, and how many may be known.

May import: quotas, records

  states            what a request may append, and what the log holds: sequences and transactions of each producer
  entry             the last batches of one producer, and its open transaction
  append_checks     rules of one batch: its epoch, its sequence, its transaction
  marker_checks     rules of one transaction marker: due, repeated, or refused
  ongoing_txns      transactions that hold back the last stable offset
  known_producers   the entries, and who has to make room for a new producer
  idempotency_keys  keyed producer ids of HTTP, and the room that they take
  limits            limits on producer ids that all logs of a broker share
  verification      guards of transactions that are about to begin (KIP-890)
  snapshot          Kafka's `.snapshot` format
  aborted_txns      entries of transaction indexes, and the search in them
"""
