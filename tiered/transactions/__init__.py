"""Transactions as pure decisions (KIP-98, KIP-360, KIP-890).

May import: quotas

  shard          the transaction coordinator shard of one `__transaction_state` partition
  requests       requests to a transaction coordinator, its replies, and its events
  metadata       the state of one transactional id, as its log has it
  decision       the state and the collected changes of one decision
  producer_init  InitProducerId: a producer's id and epoch, and the fence against its predecessor
  partitions     AddPartitionsToTxn: partitions that join a transaction, or that belong to it
  end            EndTxn, timeouts, and the completion after all markers
  renewal        new producer ids after a loss of the log (R5)
  expiry         expiry of transactional ids that nobody uses
  admin          description and listing of transactions
  orphans        the rule by which a transaction without a coordinator is aborted
  records        records of `__transaction_state` in Kafka's bytes
  limits         Kafka's limits for transactions
  invariants     a check of all that must hold between decisions
"""
