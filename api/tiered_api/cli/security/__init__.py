"""The commands `tiered acl`, `tiered user`, `tiered quota` and `tiered audit`.

May import: as cli

~ acls       acl: list, add and remove ACLs
~ acl_requests  requests about ACLs, over the Kafka protocol
~ users      user: list, add, alter and remove credentials of SCRAM
~ quotas     quota: list, set and remove quotas
~ audit      events of the audit log
~ passwords  a password from a file, from standard input, or typed
~ login_mechanisms  the refusal of a password that no login of the brokers takes
~ lockout    the ACLs and settings that decide who may administrate the cluster
"""
