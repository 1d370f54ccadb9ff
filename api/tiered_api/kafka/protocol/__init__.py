"""The messages of the Kafka protocol as tables, and their codecs; pure.

May import: words

  apis              the supported APIs and versions
  schema            the vocabulary of message tables: fields and their versions
  codec             encoding and decoding of messages by compiled functions
  encoder           the generator of encoder functions
  decoder           the generator of decoder functions
  function_builder  a Python function under construction
  headers           request and response headers
  primitives        sizes, unsigned varints, ids and tagged fields
  messages/         one table of messages for each API
"""
