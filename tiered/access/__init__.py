"""Callers of this broker: logins, rights, quotas and shares, and the log of what they did.

May import: controller

  audit_log          logins and refused operations as lines of JSON
  client_quotas      what each client has used of its quotas on this broker (I28)
~ quota_reports      reports of that use to the other processes of the machine
  pots               the pots that clients share: their levels, and reports of refusals
~ token_validator    bearer tokens of clients, and the public keys that check them
  delegation_tokens  delegation tokens (KIP-48): HMACs, and credentials of their bearers
  authorization      the rights of callers under the ACLs of the image
"""
