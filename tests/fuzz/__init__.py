"""Bytes as no client and no disk gives them, for each reader of bytes: it reads them or says that they are wrong.

python -m tests.fuzz [TARGET ...] --rounds 1000 --seed 7      ends with 1 where a rule broke

The input that broke it is kept in the corpus.

wire        requests of the Kafka protocol, every API and version; what brokers say to each other
records     record batches and their sections, every codec, C against plain Python
http        targets, headers, compressed bodies, JSON records and requests
sasl        messages of logins, tokens, sets of keys, login modules
files       segments, indexes, checkpoints, snapshots; manifests, metadata and images of the bucket

mutations   the changes; rounds: one target's rounds and its corpus; frames: every table, drawn anew in each run
corpus/     a folder for each target, one input a file, named after its kind up to the first "-"
"""
