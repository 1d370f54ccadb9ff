"""The schema registry as pure decisions: subjects, versions, ids, compatibility. Its log is the topic `_schemas`.

May import: words

  subjects       names of subjects and of their contexts
  context_paths  addresses below a context, as addresses of its subjects
  schema         one schema: text, format, references
  refusals       refusals with the codes of Confluent's API
  records        the records of `_schemas`, in Confluent's form
  state          subjects, versions and ids as a fold of the records (I37)
  registration   registers schemas: the version and the id that a schema gets
  deletion       soft and permanent deletion of versions and subjects
  record_validation  the check that records name schemas of their subjects
  rules          compatibility levels and modes, of subjects, of contexts and of all
  compatibility  the seven levels: the versions that a new schema is compared with, and in which direction
  json_text      the bounds of schemas that are JSON
  avro           Avro: canonical text, and compatibility by the library `avro`
  json_schema    JSON Schema: canonical text, and compatibility
  json_documents  JSON Schema: documents, and what the references in them name
  json_shapes    JSON Schema: a schema as its constraints
  json_numbers   JSON Schema: compatibility of limits such as `maximum`
~ protobuf       Protobuf: descriptors, and compatibility
~ protoc         the compiler of Protobuf, in a process of its own
  values         keys and values by their schemas: JSON to framed bytes and back
  avro_values    values of Avro, by the JSON encoding of its specification
  protobuf_values  values of Protobuf, by the library's JSON mapping
  formats        the formats by their names, each with its library
"""
