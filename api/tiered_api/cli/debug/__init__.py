"""The commands of `tiered debug`.

May import: cli.explain

  selection  the topics and partitions that a bundle explains: those that health names
  redaction  hides secrets in replies and in lines of logs
~ archive    the files of a bundle, their bounds, and what is left out
~ machine    the files of a broker's machine: logs, and the list of its data directory
~ bundle     bundle: one archive with the state of a cluster
"""
