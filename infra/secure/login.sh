#!/usr/bin/env bash
# Writes the files of a client into the current directory: login.sh USER. BROKERS has the addresses, ca.pem is here.
#
#   USER.password           a random password, unless it is here already
#   USER.properties         logs in by the password, for `--command-config` and Kafka's own tools
#   USER-token.properties   logs in by the token in USER.token
#   USER.curl               the same password for `curl -K`
set -euo pipefail
umask 077

user=${1:?login.sh needs the name of a user}
[ -e "$user.password" ] || openssl rand -hex 24 > "$user.password"

cat > "$user.properties" <<END
bootstrap.servers=${BROKERS:?}
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location=$PWD/ca.pem
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="$user" password="$(cat "$user.password")";
END

cat > "$user-token.properties" <<END
bootstrap.servers=$BROKERS
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location=$PWD/ca.pem
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.token.endpoint.url=file://$PWD/$user.token
# For Kafka's own tools, which also want the URL in -Dorg.apache.kafka.sasl.oauthbearer.allowed.urls.
sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
END

cat > "$user.curl" <<END
silent
show-error
cacert = "$PWD/ca.pem"
user = "$user:$(cat "$user.password")"
END
