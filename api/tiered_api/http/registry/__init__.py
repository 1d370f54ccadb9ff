"""The schema registry over HTTP, with the addresses and the errors of Confluent's API, from any broker.

May import: as http

~ schema_log       the log `_schemas`: read to its end before a request, and appended to (I37)
~ audited_writes   writes with a line in the audit log
~ registrations    schemas parsed and compared in threads, then registered
~ value_codecs     encodings of schemas by their ids
~ record_encoding  records with schemas, from JSON to framed bytes
~ rights           the rights on subjects, which are those on topics
~ bodies           bodies and query parameters of requests, and replies
~ subjects         subjects and their versions
~ schemas          schemas by their ids
~ rules            compatibility levels and modes
~ compatibility    tests of a schema that is not registered
"""
