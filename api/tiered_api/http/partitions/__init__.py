"""Reads and writes of any partition from any broker.

May import: as http

~ records           the records endpoint of one partition
~ reads             start offset, size and wait of all reads of a partition
~ produce           produce with acks=all: partition, batch, outcome
~ idempotency       `Idempotency-Key`: a request that is sent again writes nothing
~ event_stream      server-sent events of one partition
~ record_formats    embedded formats of REST v2 and v3: binary, JSON, string
  schema_spec       the schema that a request names for keys or values
~ record_json       records as JSON for readers
  record_filter     the records that a read wants, by text, key, header and JSON
  json_condition    a path in a JSON value, and a comparison with what stands there
  record_search     the records of a filter in record batches, of which few are decoded
  search_window     the offsets that a search from the end reads next
  end_history       past end offsets of a partition, for the age of a lag
~ remote_partition  one partition, served here or by a remote leader
"""
