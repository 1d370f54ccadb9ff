#!/usr/bin/env bash
# Adds a tenant: tenant.sh USER PREFIX. It is a user with all rights on topics, groups and transactional ids whose names
# begin with PREFIX, and with quotas. admin.properties is here; the files of `login.sh` are written beside it.
set -euo pipefail

user=${1:?tenant.sh needs USER PREFIX} prefix=${2:?tenant.sh needs USER PREFIX}
admin() { tiered "$@" --command-config admin.properties; }

login.sh "$user"
admin user add "$user" --password-file "$user.password"
admin acl add --allow-principal "User:$user" --resource-pattern-type prefixed \
  --topic "$prefix" --group "$prefix" --transactional-id "$prefix"
# Transactions over HTTP have this id for everybody.
admin acl add --allow-principal "User:$user" --transactional-id tiered-http --operation Write
# Bytes in a second at each broker, percent of a broker's time, partitions that are made or deleted in a second.
admin quota set --user "$user" producer_byte_rate=2000000 consumer_byte_rate=4000000 request_percentage=30 \
  controller_mutation_rate=5
