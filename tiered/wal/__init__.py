"""The write-ahead chains of brokers in the bucket: records of topics with `flush=bucket` before their segments close.

May import: hot, object_store

  layout        keys and bytes of a chain's objects: windows and fences
  history       the records of one partition in all its chains, as one log (R7)
  window        decisions on windows: when one ends, and which slot confirms which offsets (R7)
  trimming      decision on the slots of a chain that are not needed any more (I38)
~ chain_writer  the chain of this broker: one put for each window, offsets confirmed in the order of slots (R7)
~ shared_gets   gets of objects of a chain that partitions share
~ takeover      the fence in another broker's chain, and its records (R7)
"""
