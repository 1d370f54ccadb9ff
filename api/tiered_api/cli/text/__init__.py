"""Records and offsets as text.

May import: kafka.client

  visible        untrusted text made safe for terminals and logs
~ record_format  output formats of records, in the verbs of rpk and kcat
  record_input   records from a stream, in the formats of rpk
~ offset_range   offset ranges in the syntax of rpk
"""
