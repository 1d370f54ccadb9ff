"""The commands `tiered acl` and `tiered user`.

May import: as cli

~ acls       acl: list, add and remove ACLs
~ acl_requests  requests about ACLs, over the Kafka protocol
~ users      user: list, add, alter and remove credentials of SCRAM
~ passwords  a password from a file, from standard input, or typed
~ lockout    the refusal of a change after which nobody may administrate the cluster
"""
