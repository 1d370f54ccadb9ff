#!/usr/bin/env bash
# Stands in for an identity provider: makes a pair of keys and signs tokens, with openssl alone.
#
#   tokens.sh keys                  token-signer.pem and token-keys.json: the private key, and the public one as a JWK set
#   tokens.sh add                   token-next.pem: the next private key; adds its public key to the set
#   tokens.sh switch                signs with the next key from now on: token-next.pem becomes token-signer.pem
#   tokens.sh retire                leaves the public key of token-signer.pem alone in the set
#   tokens.sh sign NAME [SECONDS]   prints a token for NAME, good for an hour or for SECONDS
#
# Brokers read token-keys.json. Whoever has token-signer.pem is everybody: no broker needs it.
set -euo pipefail
umask 077

# Runs openssl, which chats on stderr: its words are for failures only.
openssl_quietly() {
  local said
  said=$(openssl "$@" 2>&1) || { echo "$said" >&2; exit 1; }
}

ISSUER=https://login.example.com/
AUDIENCE=tiered

base64url() {
  openssl base64 -A | tr '+/' '-_' | tr -d '='
}

# The id is the hash of the key, so that a new key has a new one.
key_id() {
  openssl pkey -in "$1" -pubout -outform DER | openssl dgst -sha256 -binary | base64url
}

make_private_key() {
  openssl_quietly genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out "$1"
}

# Writes the set by one rename, with the public keys of these files.
write_set() {
  local file modulus keys=""
  for file in "$@"; do
    modulus=$(openssl rsa -in "$file" -noout -modulus | sed 's/^Modulus=//; s/../\\x&/g')
    keys+=$(printf ',{"kty":"RSA","use":"sig","alg":"RS256","kid":"%s","n":"%s","e":"AQAB"}' \
      "$(key_id "$file")" "$(printf '%b' "$modulus" | base64url)")
  done
  printf '{"keys":[%s]}\n' "${keys#,}" > token-keys.json.new
  mv token-keys.json.new token-keys.json
}

sign() {
  local now header claims
  now=$(date +%s)
  header=$(printf '{"alg":"RS256","typ":"JWT","kid":"%s"}' "$(key_id token-signer.pem)" | base64url)
  claims=$(printf '{"iss":"%s","aud":"%s","sub":"%s","iat":%d,"exp":%d}' \
    "$ISSUER" "$AUDIENCE" "$1" "$now" "$((now + $2))" | base64url)
  echo "$header.$claims.$(printf '%s' "$header.$claims" | openssl dgst -sha256 -sign token-signer.pem | base64url)"
}

case "${1:-} $#" in
  "keys 1") make_private_key token-signer.pem; write_set token-signer.pem ;;
  "add 1") make_private_key token-next.pem; write_set token-signer.pem token-next.pem ;;
  "switch 1") mv token-next.pem token-signer.pem ;;
  "retire 1") write_set token-signer.pem ;;
  "sign 2" | "sign 3") sign "$2" "${3:-3600}" ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
