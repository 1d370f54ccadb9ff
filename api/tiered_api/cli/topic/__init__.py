"""The commands of `tiered topic`.

May import: as cli

~ topics          create, list, alter, add-partitions
~ deletion        delete, and how many records would go
~ describe        describe, trim
~ storage         describe-storage: where the records of partitions are
~ positions       the positions of groups in topics
  tier_bars       the tiers of partitions as bars of characters
~ tier_picture    the bars on a terminal
~ portability     check-settings: settings that do not survive a move between Kafka and tiered
~ compact         compact: a clean now
~ compaction      what cleans did in partitions, and what is dirty
~ produce         records from standard input into topics
~ consume         records of topics to standard output
~ consume_group   consumption as a member of a group
~ outages         calls that are made again while brokers are unreachable
~ record_printer  consumed records as JSON or in a format
"""
