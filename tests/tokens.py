"""Tokens that a test signs, and the set of public keys that a token server would publish."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tiered.security.bearer_tokens import TokenRules

ISSUER, AUDIENCE = "https://login.example.com/", "tiered"
RULES = TokenRules(ISSUER, (AUDIENCE, "logs"), 30.0)
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
UNTRUSTED = ec.generate_private_key(ec.SECP256R1())


def public_key(key: Any, key_id: str | None, **more: str) -> dict[str, Any]:
    """Returns a public key as a row of a set."""
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    row: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return {**row, **({} if key_id is None else {"kid": key_id}), **more}


def key_set(*rows: dict[str, Any]) -> bytes:
    """Returns a set of keys: that of EC and RSA without rows."""
    return json.dumps({"keys": rows or (public_key(EC, "ec"), public_key(RSA, "rsa", use="sig"))}).encode()


def token(
    key: Any = EC, algorithm: str = "ES256", key_id: str | None = "ec", now: float | None = None, **claims: Any
) -> str:
    """Returns a token for alice that is good for five minutes from now. A claim that is None is left out."""
    now = int(time.time() if now is None else now)
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 300, **claims}
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode({name: each for name, each in given.items() if each is not None}, key, algorithm, headers)
