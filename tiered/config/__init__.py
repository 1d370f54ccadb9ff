"""The settings of brokers and topics: names, types, defaults, limits and checks.

May import: security

  setting        one setting as a row of a table, with parsing and refusal
  settings       the tables of topic settings and of broker settings
  portability    settings that do not survive a move between Kafka and here
  topic_limits   limits of brokers on settings that owners of topics choose
  group_config   the table of settings of groups, and their bounds
  rules          rules between several settings, and forms of list values
  quick_settings  settings of brokers that serve test suites
  unserved       Kafka's settings of brokers that have no effect here
  kafka_aliases  Kafka's setting names, mapped to the names used here
  processes      the processes of one machine, and the settings of each
  listener_overrides  settings of single listeners
  ip_overrides   addresses with a limit of connections of their own
  exposure       the refusal of addresses that are open to other machines
  properties     properties files, read as Java reads them
  listeners      listener lists in Kafka's syntax, bound and advertised
"""
