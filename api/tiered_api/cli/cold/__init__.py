"""The commands of `tiered cold` and `tiered encryption`.

May import: cli, offline

~ commands  ls and cat: the bucket read without a broker
~ verify    the check of all objects of topics in the bucket
~ encryption  add, activate and remove: the key file of an encrypted bucket; list: the keys in use;
               rewrite: objects encrypted anew
"""
