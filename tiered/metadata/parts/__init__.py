"""The parts of the metadata image: each has its values, its replay of changes, and its JSON in a snapshot.

Keeps I24: a change that does not fit its part is `Corrupt`, because the log has forked then. Exceptions change nothing:
a change of an incarnation of a broker that is gone or replaced, and a removal, a TopicForgotten or a LossesAcknowledged
that finds nothing. A part is immutable. It has `KINDS`, the changes that it takes, and `apply`, `to_json` and
`from_json`. Older snapshots lack newer keys.

May import: as metadata

  controllers        the controller, its epoch and its incarnation
  brokers            the registered brokers and their settings
  topics             topics, their partitions, deleted topics and losses
  producer_ids       the producer ids that were given out
  features           the levels of features (KIP-584)
  acls               the ACLs
  scram              the SCRAM credentials of users
  quotas             the client quotas
  groups             the settings of groups
  broker_secrets     the secrets of brokers
  delegation_tokens  the delegation tokens (KIP-48)
  json_fields        the fields of a value for a snapshot
"""
