"""One request and its response, and all that a handler uses to serve it.

May import: as http

~ context         the broker, limits, memory budget and threads that handlers reach
~ request         one request: path arguments, query values, a bounded body
~ responses       responses in one piece of bytes
~ sendfile        a response copied by the kernel from a segment file
~ metering        the charge of requests against client quotas (I28)
  fields          the rules that a JSON body has few values, no unknown field, and none twice
  json_entries    a JSON body whose list of records is parsed in pieces
  schemas         the bodies of requests as OpenAPI schemas
  errors          errors as HTTP status, Confluent code and message
~ limits          all limits on clients of the HTTP server
  media_types     content negotiation by media type
~ decompress      bounded decompression of gzip and zstd bodies
~ remote_brokers  requests to other brokers over the Kafka protocol
"""
