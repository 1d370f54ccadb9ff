"""The producers of one partition: their last batches, their open transactions, and how many may be known.

May import: quotas, records

  states        sequence numbers and transactions of each producer
  verification  guards of transactions that are about to begin (KIP-890)
  aborted_txns  entries of transaction indexes, and the search in them
"""
