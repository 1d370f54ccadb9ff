"""SCRAM (RFC 5802, RFC 7677): the stored credentials, and both sides of a login as machines.

A login proves the password to the server and the stored credential to the client, and neither travels. The caller draws
the nonces. A machine that refused once refuses every later message. Channel binding is not supported. User names and
passwords are UTF-8 without SASLprep, as in Kafka.

A login of an unknown user goes on to its end, and fails there. Its salt and its iterations have the shape of those of
some user that exists: they show nothing.

With the extension `tokenauth=true` the user is the id of a delegation token (KIP-48).
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from hashlib import new, pbkdf2_hmac
from typing import NamedTuple

from tiered.errors import Code, Refused

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
"""Limits on the iterations of a credential, as in Kafka."""
ITERATIONS_ACCEPTED_MAX = 1 << 20
"""Most iterations that a client computes for a server: a false server must not occupy it for hours."""
SALT_LETTERS = 26
SHAPES_MAX = 16
"""Most shapes of credentials that a server tells apart."""
NONCE_MAX = 1024
TOKEN_EXTENSION = "tokenauth"
FAILED = "authentication failed: the user or the password is wrong"
"""The one text of every failed proof: it does not tell which users exist."""

_NAME = r"(?:[^=,\0]|=2C|=3D)+"
_FIRST = re.compile(rf"(?P<gs2>[ny],(?:a=(?P<acting>{_NAME}))?,)(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>[!-+\--~]+)"
                    r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*))")  # fmt: skip
_SERVER_FIRST = re.compile(r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9/+=]+),i=(?P<iterations>[1-9][0-9]{0,8})"
                           r"(?:,[A-Za-z]=[^,\0]+)*")  # fmt: skip
_FINAL = re.compile(r"(?P<start>c=(?P<binding>[A-Za-z0-9/+=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,\0]+)*)"
                    r",p=(?P<proof>[A-Za-z0-9/+=]+)")  # fmt: skip
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


class ScramMechanism(Enum):
    """The mechanisms: the name of the hash, and Kafka's number."""

    SHA_256 = ("sha256", 1)
    SHA_512 = ("sha512", 2)

    @property
    def mechanism_name(self) -> str:
        """The name in the SASL registry, such as SCRAM-SHA-256."""
        return f"SCRAM-{self.name.replace('_', '-')}"

    @property
    def number(self) -> int:
        """The number in Kafka's messages."""
        return self.value[1]

    @property
    def hash_name(self) -> str:
        """The name of the hash function."""
        return self.value[0]

    @property
    def digest_bytes(self) -> int:
        """The bytes of a key."""
        return new(self.hash_name).digest_size

    def hmac(self, key: bytes, message: bytes) -> bytes:
        """Returns HMAC(key, message)."""
        return hmac.digest(key, message, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        """Returns H(data)."""
        return new(self.hash_name, data).digest()


MECHANISMS = {each.mechanism_name: each for each in ScramMechanism}
BY_NUMBER = {each.number: each for each in ScramMechanism}


class ScramCredential(NamedTuple):
    """The keys that a server keeps of a password: enough to check a proof, not enough to make one."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Returns the salted password. Takes about a millisecond for 4096 iterations."""
    return pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def make_credential(mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Returns the credential of a salted password."""
    client_key = mechanism.hmac(salted_password, b"Client Key")
    return ScramCredential(salt, mechanism.hash(client_key), mechanism.hmac(salted_password, b"Server Key"), iterations)


def has_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """True if the credential was made of this password."""
    salted = salt_password(mechanism, password, credential.salt, credential.iterations)
    made = make_credential(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


class CredentialShape(NamedTuple):
    """The part of a credential that its server shows to everybody who begins a login."""

    salt_bytes: int
    is_text: bool
    """True if the salt has only lower-case letters and digits, as Kafka's tools make it. librdkafka takes any bytes."""
    iterations: int


DEFAULT_SHAPE = CredentialShape(SALT_LETTERS, True, ITERATIONS_MIN)


def list_shapes(credentials: Iterable[ScramCredential]) -> tuple[CredentialShape, ...]:
    """Returns the shapes of credentials, the most frequent ones, on every broker in the same order."""
    text = frozenset(_ALPHABET.encode())
    counts = Counter(
        CredentialShape(len(each.salt), text.issuperset(each.salt), each.iterations) for each in credentials
    )
    frequent = sorted(counts, key=lambda shape: (-counts[shape], shape))[:SHAPES_MAX]
    return tuple(frequent) or (DEFAULT_SHAPE,)


def make_salt(random_bytes: bytes, letters: int = SALT_LETTERS) -> bytes:
    """Returns a salt of letters and digits, as Kafka's tools make them."""
    number = int.from_bytes(random_bytes, "big")
    salt = []
    for _ in range(letters):
        number, digit = divmod(number, 36)
        salt.append(_ALPHABET[digit])
    return "".join(salt).encode()


def make_absent_credential(
    mechanism: ScramMechanism, secret: bytes, user: str, shapes: Sequence[CredentialShape] = (DEFAULT_SHAPE,)
) -> ScramCredential:
    """Returns a credential that no password fits, the same for each login of one user name. It has one of the shapes,
    and keeps that one while others come and go."""
    key = mechanism.hmac(secret, user.encode(errors="surrogateescape"))
    shape = max(shapes, key=lambda each: mechanism.hmac(key, repr(tuple(each)).encode()))
    seed = pbkdf2_hmac(mechanism.hash_name, key, b"salt", 1, dklen=max(shape.salt_bytes, mechanism.digest_bytes))
    salt = make_salt(seed, shape.salt_bytes) if shape.is_text else seed[: shape.salt_bytes]
    return ScramCredential(salt, mechanism.hmac(key, b"stored"), key, shape.iterations)


class ScramServer:
    """The server's side of one login. `find_credentials` returns the credentials that a user has now, each of which
    proves it. They have the same salt and iterations. `find_token_credentials` does the same for a delegation token.
    `shapes` are those of the credentials of all users."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find_credentials: Callable[[str], Sequence[ScramCredential]],
        nonce: str,
        secret: bytes,
        find_token_credentials: Callable[[str], Sequence[ScramCredential]] = lambda _: (),
        shapes: Sequence[CredentialShape] = (DEFAULT_SHAPE,),
    ) -> None:
        self.user = ""
        """The user, once its proof was accepted; the id of a token if `is_by_token`."""
        self.claimed_user = ""
        """The user that the client names, proved or not."""
        self.is_by_token = False
        self.credential: ScramCredential | None = None
        """The credential that was proved."""
        self._mechanism = mechanism
        self._find_credentials = find_credentials
        self._find_token_credentials = find_token_credentials
        self._nonce = nonce
        self._secret = secret
        self._shapes = shapes
        self._credentials: Sequence[ScramCredential] = ()
        self._is_known = False
        self._binding = b""
        self._sent = ""
        self._has_ended = False

    def step(self, message: bytes) -> bytes:
        """Returns the reply to the next message of the client. `user` is set after the last one. Raises `Refused` if
        the login failed."""
        if self._has_ended:
            raise _refuse("the login has ended")
        try:
            text = message.decode()
        except UnicodeDecodeError:
            self._has_ended = True
            raise _refuse("the SCRAM message is not UTF-8") from None
        try:
            if not self._credentials:
                return self._on_first(text)
            self._has_ended = True
            return self._on_final(text)
        except Refused:
            self._has_ended = True
            raise

    def _on_first(self, text: str) -> bytes:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise _refuse("the first message is not of the form n,,n=user,r=nonce")
        extensions = dict(each.split("=", 1) for each in match["extensions"].split(",") if each)
        if "m" in extensions:
            raise _refuse("an extension that is mandatory is not supported")
        if extensions.get(TOKEN_EXTENSION, "").lower() == "true":
            self.is_by_token = True
            self._find_credentials = self._find_token_credentials
            self._shapes = (DEFAULT_SHAPE,)
        user = decode_name(match["user"])
        if match["acting"] and decode_name(match["acting"]) != user:
            raise _refuse("the authorization id differs from the user")
        if len(match["nonce"]) > NONCE_MAX:
            raise _refuse(f"the nonce is longer than {NONCE_MAX} characters")
        found = self._find_credentials(user)
        self._is_known = bool(found)
        self._credentials = found or (make_absent_credential(self._mechanism, self._secret, user, self._shapes),)
        credential = self._credentials[0]
        self.claimed_user = user
        self._binding = match["gs2"].encode()
        self._nonce = match["nonce"] + self._nonce
        reply = f"r={self._nonce},s={_encode(credential.salt)},i={credential.iterations}"
        self._sent = f"{match['bare']},{reply}"
        return reply.encode()

    def _on_final(self, text: str) -> bytes:
        match = _FINAL.fullmatch(text)
        if match is None:
            raise _refuse("the last message is not of the form c=binding,r=nonce,p=proof")
        if _decode(match["binding"]) != self._binding:
            raise _refuse("the channel binding differs from the first message")
        # librdkafka before 2.6.1 sends its own nonce twice. The proof covers that, and the server's nonce is there.
        if not match["nonce"].endswith(self._nonce):
            raise _refuse("the nonce differs from the first messages")
        signed = f"{self._sent},{match['start']}".encode()
        proof = _decode(match["proof"])
        mechanism = self._mechanism
        if len(proof) != mechanism.digest_bytes:
            raise _refuse(FAILED)
        proven = [each for each in self._credentials if self._fits(each, proof, signed)]
        # The user may have changed since the first message.
        current = self._find_credentials(self.claimed_user)
        proven = [each for each in proven if each in current]
        if not proven or not self._is_known:
            raise _refuse(FAILED)
        self.user, self.credential = self.claimed_user, proven[0]
        return f"v={_encode(mechanism.hmac(proven[0].server_key, signed))}".encode()

    def _fits(self, credential: ScramCredential, proof: bytes, signed: bytes) -> bool:
        client_key = _xor(proof, self._mechanism.hmac(credential.stored_key, signed))
        return hmac.compare_digest(self._mechanism.hash(client_key), credential.stored_key)


class ScramClient:
    """The client's side of one login. `is_done` is true once the server has proved that it knows the credential. If
    `by_token`, the user is the id of a delegation token, and the password its HMAC in base64."""

    def __init__(
        self, mechanism: ScramMechanism, user: str, password: str, nonce: str, *, by_token: bool = False
    ) -> None:
        self.is_done = False
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={encode_name(user)},r={nonce}" + (f",{TOKEN_EXTENSION}=true" if by_token else "")
        self._server_signature: bytes | None = None

    def make_first(self) -> bytes:
        """Returns the first message."""
        return f"n,,{self._bare}".encode()

    def step(self, message: bytes) -> bytes:
        """Returns the next message for the server; nothing after the last reply. Raises `Refused` if the server breaks
        the protocol, or cannot prove itself."""
        text = message.decode(errors="replace")
        return self._on_first(text) if self._server_signature is None else self._on_final(text, self._server_signature)

    def _on_first(self, text: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            raise _refuse("the server's first message does not parse")
        iterations = int(match["iterations"])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_ACCEPTED_MAX:
            raise _refuse(f"the server wants {iterations} iterations")
        if not match["nonce"].startswith(self._nonce) or match["nonce"] == self._nonce:
            raise _refuse("the server's nonce does not continue the client's")
        mechanism = self._mechanism
        salted = salt_password(mechanism, self._password, _decode(match["salt"]), iterations)
        client_key = mechanism.hmac(salted, b"Client Key")
        start = f"c={_encode(b'n,,')},r={match['nonce']}"
        signed = f"{self._bare},{text},{start}".encode()
        proof = _xor(client_key, mechanism.hmac(mechanism.hash(client_key), signed))
        self._server_signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return f"{start},p={_encode(proof)}".encode()

    def _on_final(self, text: str, expected: bytes) -> bytes:
        kind, _, value = text.partition("=")
        if kind != "v" or not hmac.compare_digest(_decode(value.partition(",")[0]), expected):
            raise _refuse("the server does not prove that it knows the password")
        self.is_done = True
        return b""


def encode_name(name: str) -> str:
    """Returns a user name as SCRAM messages have it."""
    return name.replace("=", "=3D").replace(",", "=2C")


def decode_name(name: str) -> str:
    """Returns the user name that a SCRAM message has."""
    return name.replace("=2C", ",").replace("=3D", "=")


def _refuse(why: str) -> Refused:
    return Refused(Code.SASL_AUTHENTICATION_FAILED, why)


def _encode(data: bytes) -> str:
    return b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise _refuse("a value is not base64") from None
    if _encode(data) != text:
        raise _refuse("a value is not base64 in its one canonical form")
    return data


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
