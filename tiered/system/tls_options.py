"""The settings of TLS of one side, as Kafka names them, and the PEM texts in them."""

from __future__ import annotations

import re
import textwrap
from typing import NamedTuple

from tiered.security.secret import Secret

PEM, PKCS12 = "PEM", "PKCS12"
NONE, REQUESTED, REQUIRED = "none", "requested", "required"
TLS_1_2, TLS_1_3 = "TLSv1.2", "TLSv1.3"
_LINE = 64
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----([^-]*)-----END \1-----")


class Store(NamedTuple):
    """A key with its certificates, or certificates to trust: in a file, or as text."""

    type: str = PEM
    location: str = ""
    password: Secret = Secret()
    """Password of the file; for PEM, of the key in it."""
    certificates: str = ""
    key: Secret = Secret()

    def __bool__(self) -> bool:
        """True if there is something in the store."""
        return bool(self.location or self.certificates or self.key)


class TlsOptions(NamedTuple):
    """All that a side of TLS needs to know. Names in messages begin with `ssl.`, as Kafka's settings do."""

    key: Store = Store()
    trust: Store = Store()
    client_auth: str = NONE
    protocols: tuple[str, ...] = (TLS_1_2, TLS_1_3)
    ciphers: tuple[str, ...] = ()
    checks_host: bool = True


def wrap_pem(text: str) -> str:
    """Returns the PEM blocks of a text in lines. A setting may have them in one line, with blanks or `\\n` inside."""
    blocks = []
    for match in _BLOCK.finditer(text.replace("\\n", "\n")):
        body = textwrap.fill("".join(match[2].split()), _LINE)
        blocks.append(f"-----BEGIN {match[1]}-----\n{body}\n-----END {match[1]}-----\n")
    return "".join(blocks)
