"""The replicated cluster metadata: its image, its changes, and its log in the bucket.

May import: config, object_store, security, quotas

  image             the immutable cluster metadata as of one slot, from its parts
  parts/            the parts of the image: values, replay and JSON of each
  changes           all kinds of changes in the metadata log, with their encoding (M2)
  delta             the actions of one broker between two images
  layout            keys and bodies of the metadata objects in the bucket
  election          the epoch and the slot of a candidate for controller (M2)
  candidacy         the time at which a broker becomes a candidate (M4)
~ log_writer        the writing side of the metadata log (M1, M2, M3)
~ log_reader        replay of the metadata log from the newest snapshot (M3)
  recent_entries    the newest log entries in memory, for standby controllers
~ entry_history     entries of the log for people, from memory and the bucket
~ loader            the newest image, and the slot applied by this broker (M5)
  topic_names       the rules for topic names
  features          features of the cluster, and their levels (KIP-584)
  internal_topics   the rules for internal topics
  stored_configs    settings in the metadata log, in their normal form
  effective_config  settings in force, after all cluster-wide and broker overrides
  dynamic_config    the settings of one broker, at its start and in force (KIP-226)
  config_sources    every source of a setting's value, the strongest first
  shown_changes     metadata changes as people may see them, without secrets
  change_summary    metadata changes as a few lines for the broker's log
"""
