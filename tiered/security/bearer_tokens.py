"""Bearer tokens (RFC 6750): signed JSON Web Tokens (RFC 7519), judged by a set of public keys (RFC 7517).

The package PyJWT checks signatures. A token is signed by a key of the set, with the algorithm of that key: `none` and
secrets that both sides know are no such algorithms. Nothing that a token names is fetched. Its issuer and its audience
are those that the broker expects, and it has not expired.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tiered.errors import Code, Refused
from tiered.security.principal import can_be_issued

TOKEN_MAX = 16 << 10
"""Most characters of a token."""
NAME_MAX = 1024
KEY_SET_BYTES = 1 << 20
"""Most bytes of a set of keys."""
KEYS_MAX = 100
"""Most keys that are taken of a set."""
NO_JWT = "logins by token need the package PyJWT: pip install 'tiered[oauth]'"
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS = frozenset((*_RSA, "ES256", "ES384", "ES512", "EdDSA"))
_PUBLIC = ("kty", "kid", "alg", "n", "e", "crv", "x", "y")
"""The fields of a public key. Others are not read, so a private key is never held."""


class TokenRules(NamedTuple):
    """The claims that a token has to have."""

    issuer: str
    audiences: tuple[str, ...]
    skew_seconds: float = 30.0
    """Most seconds that the clocks of issuer and broker may differ."""
    subject_claim: str = "sub"
    """The claim with the name of the principal."""


class VerifiedToken(NamedTuple):
    """The principal of a token, and the second since 1970 at which it expires."""

    name: str
    expires_at: float


class UnknownKey(Refused):
    """The token names a key that the set does not have: a newer set may have it."""


KEY_ID_SHOWN = 100
"""Characters of a key id that an error shows."""


class KeySet:
    """Public keys, by their id and by the algorithm that they sign with."""

    def __init__(self, keys: Mapping[tuple[str, str], Sequence[Any]] | None = None) -> None:
        self._keys = keys or {}

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    @property
    def ids(self) -> list[str]:
        """The ids of the keys, each once."""
        return list(dict.fromkeys(known for known, _ in self._keys))

    def has(self, key_id: str) -> bool:
        """True if there is a key of this id."""
        return any(known == key_id for known, _ in self._keys)

    def find(self, key_id: str | None, algorithm: str) -> Iterator[Any]:
        """Yields the keys that may have signed a token. A token without a key id may be of any key."""
        for (known, signs), keys in self._keys.items():
            if signs == algorithm and key_id in (None, known):
                yield from keys


def read_key_set(text: bytes) -> KeySet:
    """Returns the public keys in a JWK set. Keys for other purposes, and weak ones, are left out.

    An empty set is one: its issuer has taken all keys back. Raises `Refused` (INVALID_CONFIG) if it is no set, or if
    none of its keys can be used.
    """
    jwt = _import_jwt()
    try:
        rows = json.loads(text)["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Refused(Code.INVALID_CONFIG, "the key set is no JSON object with a list of keys") from None
    found: dict[tuple[str, str], list[Any]] = {}
    if rows == []:
        return KeySet(found)
    for row in rows[:KEYS_MAX] if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("kty") not in ("RSA", "EC", "OKP") or row.get("use", "sig") != "sig":
            continue
        public = {name: row[name] for name in _PUBLIC if isinstance(row.get(name), str)}
        for algorithm in [public["alg"]] if "alg" in public else _RSA if public["kty"] == "RSA" else [None]:
            if algorithm is not None and algorithm not in ALGORITHMS:
                continue
            try:
                key = jwt.PyJWK(public, algorithm)
            except (jwt.PyJWTError, ValueError):
                continue
            if key.algorithm_name in ALGORITHMS and not key.Algorithm.check_key_length(key.key):
                found.setdefault((public.get("kid", ""), key.algorithm_name), []).append(key)
    if not found:
        raise Refused(Code.INVALID_CONFIG, "the key set has no public key that can check a signature")
    return KeySet(found)


def verify_token(token: str, keys: KeySet, rules: TokenRules, now_seconds: float) -> VerifiedToken:
    """Returns the principal of a token. Raises `Refused` with the reason, and `UnknownKey` if no key may have signed
    it."""
    jwt = _import_jwt()
    if len(token) > TOKEN_MAX or not token.isascii():
        raise _refuse("it is too long, or no text of ASCII")
    try:
        header = jwt.get_unverified_header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise _refuse("its algorithm is not accepted")
        if "crit" in header:
            raise _refuse("it has critical extensions")
        return _read_claims(_check_signature(jwt, token, keys, key_id, algorithm, rules), rules, now_seconds)
    except jwt.InvalidAudienceError:
        raise _refuse("it is for another audience") from None
    except jwt.InvalidIssuerError:
        raise _refuse("it is of another issuer") from None
    except jwt.InvalidSignatureError:
        raise _refuse("its signature is wrong") from None
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise _refuse("it is no signed token with the claims that are needed") from None


def _check_signature(
    jwt: Any, token: str, keys: KeySet, key_id: str | None, algorithm: str, rules: TokenRules
) -> dict[str, Any]:
    """Returns the claims of a token that a key has signed, for the audience and by the issuer that are expected."""
    options = {
        "require": ["exp", "iss", "aud", rules.subject_claim],
        "verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_sub": False, "verify_jti": False,
    }  # fmt: skip
    named = f": {key_id[:KEY_ID_SHOWN]!r}" if key_id else ""
    fault: Exception = UnknownKey(Code.SASL_AUTHENTICATION_FAILED, f"the token is refused: its key is not known{named}")
    for key in keys.find(key_id, algorithm):
        try:
            claims: dict[str, Any] = jwt.decode(
                token, key, algorithms=[algorithm], audience=list(rules.audiences), issuer=rules.issuer, options=options
            )
        except jwt.InvalidSignatureError as error:
            fault = error
            continue
        return claims
    raise fault


def _read_claims(claims: Mapping[str, Any], rules: TokenRules, now_seconds: float) -> VerifiedToken:
    """Checks times and name. A claim with a time has to be a number."""
    expires, skew = _read_time(claims, "exp"), rules.skew_seconds
    assert expires is not None
    if now_seconds >= expires + skew:
        raise _refuse("it has expired")
    for name in ("nbf", "iat"):
        begins = _read_time(claims, name)
        if begins is not None and now_seconds < begins - skew:
            raise _refuse("it is not valid yet")
    subject = claims[rules.subject_claim]
    if not isinstance(subject, str) or not 0 < len(subject) <= NAME_MAX or not subject.isprintable():
        raise _refuse(f"its claim {rules.subject_claim} is no name")
    if not can_be_issued(subject):
        raise _refuse(f"its claim {rules.subject_claim} is {subject!r}, which no login may have")
    return VerifiedToken(subject, expires)


def _read_time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None and name != "exp":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 53:
        raise _refuse(f"its claim {name} is no time")
    return float(value)


def _import_jwt() -> Any:
    """Returns the package PyJWT. Only brokers with logins by token need it."""
    try:
        import jwt
    except ImportError:
        raise Refused(Code.INVALID_CONFIG, NO_JWT) from None
    return jwt


def _refuse(why: str) -> Refused:
    return Refused(Code.SASL_AUTHENTICATION_FAILED, f"the token is refused: {why}")
