"""The HTTP listener: requests, limits, routes and responses.

May import: as http

~ server         the listener and its outermost error boundary
~ routes         the table of all operations
~ router         the route of a request
~ openapi        the OpenAPI document, from the table of routes
~ context        the broker, limits, memory budget and threads that handlers reach
~ request        one request: path arguments, query values, a bounded body
~ responses      responses in one piece of bytes
~ sendfile       a response copied by the kernel from a segment file
  errors         errors as HTTP status, Confluent code and message
~ limits         all limits on clients of the HTTP server
  media_types    content negotiation by media type
  decompress     bounded decompression of gzip and zstd bodies
  allowed_hosts  refusal of cross-site browser requests
"""
