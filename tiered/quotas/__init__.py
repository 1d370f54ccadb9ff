"""Client quotas: who may use how much of a broker, as pure decisions (KIP-13, KIP-257, KIP-546, KIP-599, KIP-612).

May import: words

  entity      entities that quotas belong to, and filters over them
  validation  the quotas that an entity may have
  precedence  the quota that holds for a user and client id, in Kafka's order of eight levels
  rate        rates over a sampled window, token buckets, and throttle times (I28)
  timed_steps  the time that work takes of the event loop
  sensors     a bounded table of what each entity has used
  shares      bounds that all clients have in common, and what one of them may hold of each
"""
