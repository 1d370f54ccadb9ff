"""Bytes as no client and no disk gives them, for each reader of bytes: it reads them or says that they are wrong.

python -m tests.fuzz [TARGET ...] --rounds 1000 --seed 7      ends with 1 where a rule broke

The input that broke it is kept in the corpus.

records     record batches and their sections, every codec, C against plain Python
mutations   the changes; rounds: one target's rounds and its corpus; frames: every table of the Kafka protocol
corpus/     a folder for each target, one input a file, named after its kind up to the first "-"
"""
