"""Principals, their proofs and their rights, as pure decisions.

May import: words

  secret      a text that never prints
  principal   the principal and the host of a request
  capturing_pattern  regular expressions with groups, matched in linear time
  principal_mapping  principals of certificates, by ssl.principal.mapping.rules
  distinguished_names  names of certificates as principals
  x509        the facts of a certificate, read from its DER encoding
  certificates  certificates of listeners: states, problems, replacement
  scram       SCRAM (RFC 5802, RFC 7677): credentials, and both sides of a login
  http_basic  user and password of HTTP Basic (RFC 7617)
  sasl_plain  PLAIN (RFC 4616): users of a listener, and both sides of a login
  delegation_tokens  tokens of the cluster (KIP-48): their HMACs and credentials
  broker_secrets  the secrets of brokers, through a rotation
  bearer_tokens  signed tokens, judged by a set of public keys
  sasl_oauthbearer  OAUTHBEARER (RFC 7628): both sides of a login by a token
  broker_login  the login of brokers at each other, by the secret of the brokers
  jaas        the login module in a value of `sasl.jaas.config`
  acls        access control lists: their values, and filters over them
  authorizer  the operations that the ACLs of a cluster allow to a caller
  administrators  the principals that may change ACLs and users
  lockout     the refusal of a change after which nobody may change ACLs and users
"""
