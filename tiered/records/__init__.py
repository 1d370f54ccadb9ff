"""The record batch format v2: encoding, decoding, checks, compression.

May import: words

  batch        batch headers, stamps, encoding and decoding of whole batches
  pieces       the records of one batch in pieces, so that a batch that compresses well takes little memory
  marker       end-transaction markers: the control batch that ends a transaction in one partition
  aborted      batches of aborted transactions in a run of batches
  model        layout, header and record types of record batch v2
~ native       one set of functions, in C if built, in Python otherwise
  pure         the functions of the C extension in plain Python, which tests compare it with
  pure_compact keys into a table and superseded records out of batches, in plain Python
~ key_offset_map  the last offset of each key, in a bounded table
  pure_hash    keyed hashes of rows in Arrow buffers, in plain Python, and their encoding
  pure_text    plain Python murmur2 hash, a text in bytes, and spans of concatenated JSON values
~ compression  the five codecs, whole or in pieces, with decompression bounded before memory is allocated
  opened_size  decompressed size according to the codec's headers
  partitioner  Kafka's default partitioner for keys
  varint       zigzag varints of record batches
  arrow        decoded records as pyarrow arrays, without a copy
"""
