"""Transactions over HTTP: one request writes records and commits offsets of a group, all or nothing.

May import: as http

~ commit            the handler of `POST /tiered/v1/transactions`
~ body              the body of a request: records and offsets
  kept_replies      the reply that an idempotency key gets again
~ producer          one transactional id: its transactions, one after the other
~ transactional_ids the transactional ids of this broker's HTTP server, for one request at a time each
"""
