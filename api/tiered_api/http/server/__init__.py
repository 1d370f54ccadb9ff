"""The HTTP listener and its routes.

May import: as http

~ server         the listener and its outermost error boundary
~ handshakes     connections of HTTPS before the end of their handshake, bounded by address
~ routes         the table of all operations
~ router         the route of a request
~ authentication  the login of requests (I29)
~ rights         the table of the rights that each route needs
~ openapi        the OpenAPI document, from the table of routes
  overview_schemas  schemas of replies on the state of the cluster
  allowed_hosts  refusal of cross-site browser requests
"""
