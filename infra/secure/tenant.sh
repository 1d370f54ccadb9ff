#!/usr/bin/env bash
# Adds a tenant: tenant.sh USER PREFIX. It is a user with all rights on topics, groups and transactional ids whose names
# begin with PREFIX, and with quotas. TIERED_COMMAND_CONFIG has the login of an administrator.
# `login.sh` writes the files of the user into the current directory.
set -euo pipefail

user=${1:?tenant.sh needs USER PREFIX} prefix=${2:?tenant.sh needs USER PREFIX}
: "${TIERED_COMMAND_CONFIG:?tenant.sh needs the login of an administrator}"

login.sh "$user"
tiered user add "$user" --password-file "$user.password"
tiered acl add --allow-principal "User:$user" --resource-pattern-type prefixed \
  --topic "$prefix" --group "$prefix" --transactional-id "$prefix"
# Transactions over HTTP have this id for everybody.
tiered acl add --allow-principal "User:$user" --transactional-id tiered-http --operation Write
# Bytes in a second at each broker, percent of a broker's time, partitions that are made or deleted in a second.
tiered quota set --user "$user" producer_byte_rate=2000000 consumer_byte_rate=4000000 request_percentage=30 \
  controller_mutation_rate=5
