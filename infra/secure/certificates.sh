#!/usr/bin/env bash
# Makes the certificates of a cluster in the current directory, with openssl alone.
#
#   certificates.sh authority             ca.key and ca.pem: the authority that signs all others
#   certificates.sh broker NAME HOST...   NAME.pem: a key and its certificate, for these names and addresses
#
# ca.key signs new brokers: keep it on no broker. A second run for a NAME replaces its file by one rename.
set -euo pipefail
umask 077

# Runs openssl, which chats on stderr: its words are for failures only.
openssl_quietly() {
  local said
  said=$(openssl "$@" 2>&1) || { echo "$said" >&2; exit 1; }
}

DAYS_OF_AUTHORITY=3650
DAYS_OF_BROKER=90

make_authority() {
  if [ -e ca.key ]; then
    echo "certificates.sh: ca.key is here already: move it away to begin with another authority" >&2
    exit 1
  fi
  openssl_quietly req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -sha256 -days "$DAYS_OF_AUTHORITY" \
    -subj "/CN=tiered authority" -keyout ca.key -out ca.pem -config - <<'END'
[req]
distinguished_name = name
x509_extensions = authority
[name]
[authority]
basicConstraints = critical, CA:true, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
END
}

# Each name or address at which clients or brokers reach the broker. TLS compares it with the one that they asked for.
alternative_names() {
  local host names=""
  for host in "$@"; do
    case $host in
      *:*) names+=",IP:$host" ;;
      *[!0-9.]*) names+=",DNS:$host" ;;
      *) names+=",IP:$host" ;;
    esac
  done
  echo "${names#,}"
}

make_broker() {
  local name=$1
  shift
  work=$(mktemp -d)
  trap 'rm -r "$work"' EXIT
  openssl_quietly req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=$name" \
    -keyout "$work/key" -out "$work/request"
  # A broker is a server, and a client of the other brokers.
  cat > "$work/extensions" <<END
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = $(alternative_names "$@")
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
  openssl_quietly x509 -req -in "$work/request" -CA ca.pem -CAkey ca.key -CAcreateserial -sha256 -days "$DAYS_OF_BROKER" \
    -extfile "$work/extensions" -out "$work/certificate"
  cat "$work/key" "$work/certificate" > "$name.pem.new"
  mv "$name.pem.new" "$name.pem"
}

case "${1:-} $#" in
  "authority 1") make_authority ;;
  "broker 1" | "broker 2") echo "certificates.sh: broker needs a name, and at least one host" >&2; exit 2 ;;
  "broker "*) make_broker "${@:2}" ;;
  *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
