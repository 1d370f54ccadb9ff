"""The command `tiered`: parser, output, and access to clusters.

May import: clients, system, controller, replication, health, cli.text

~ main             the entry point: parse, run, exit code
  arguments        the whole command line as one parser
  kafka_arguments  the parsers of the commands topic, group, transaction and cluster
  security_arguments  the parsers of the commands acl, user, quota and audit
  profile_arguments  the parser of the command profile
  explain_arguments  the parsers of the commands explain, trace and debug
  parsing          building blocks of the parser
~ output           tables for people, JSON lines for programs
~ terminal         pictures on a terminal, by the extra `cli`
~ progress         what a long command does and what is left, as a line on a terminal
  exits            exit codes
~ reach            bootstrap brokers, and a client with a bounded life
  client_settings  settings of a connection, each from the first of its sources
~ client_sources   the sources: options, files, environment and profiles
~ client_properties  the properties of a Kafka client, from a file or from a profile
  profiles         named settings of connections, as a TOML file has them
~ profile_file     the file of profiles: read, and edited as a whole
~ encryption       TLS of the connections of commands
~ login            the login of the connections of commands
~ status           the outcomes of the items of a request
~ configs          settings of topics and brokers over the Kafka protocol (KIP-339)
~ deletion_rights  the topics and groups that the caller may delete
~ internal_rows    internal topics folded into one table row each
~ version          `tiered version`
  topic/           `tiered topic`
  group/           `tiered group`
  transaction/     `tiered transaction`
  cluster/         `tiered cluster`
  explain/         `tiered explain`
  debug/           `tiered debug`
  live/            `tiered top`, and groups that are watched
  security/        `tiered acl`, `tiered user`, `tiered quota` and `tiered audit`
  profile/         `tiered profile`
  broker/          `tiered serve` and `tiered up`
  cold/            `tiered cold`
  lake/            `tiered load`, `verify`, `sql` and `table`
  demo/            `tiered demo`
  text/            records and offsets as text
"""
