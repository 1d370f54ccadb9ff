"""Parts of requests that several handlers share.

May import: as kafka.server

  acl_words             ACLs and filters of requests as words of rules
~ config_resources      resource names and edits of the config APIs
~ group_requests        requests to a group coordinator, with errors as codes
  id_patterns           patterns of transactional ids, matched in linear time (KIP-1152)
~ share_state_requests  requests to a share coordinator, one for each share partition
~ token_requests        requests about delegation tokens (KIP-48): their check, and a change of an expiry
~ transaction_requests  requests to a transaction coordinator, with errors as codes
"""
