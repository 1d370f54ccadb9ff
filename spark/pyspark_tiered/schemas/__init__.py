"""Values and keys whose schemas are in a schema registry, as columns of a typed table.

May import: as pyspark_tiered

  framing      the frames of serializers: which schema a value has
~ registry     schemas of a registry with Confluent's API, by id or guid
  unreadable   a schema that no column can be made for
  cursors      cursors in thousands of encoded values
  avro_plan    Avro: columns for a schema, and how values are read into them
  avro_decode  Avro: thousands of values to Arrow columns
  avro_value   Avro: one value by itself
  avro_reparse Avro: values by fastavro, for the proof of a table
  protobuf_plan    Protobuf: columns for a message
  protobuf_decode  Protobuf: messages to Arrow columns
  protobuf_reparse Protobuf: messages by a reader of the wire, for the proof of a table
  json_plan    JSON Schema: columns that a schema says plainly
  sorting      records as rows and dead letters
  reparsing    records by the other decoders, for the proof of a table
"""
