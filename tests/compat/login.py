"""The login of clients over SASL_SSL, and the authority that signed the broker's key.

The login is a user of SCRAM-SHA-512 or of PLAIN, or a client whose tokens a token server issues.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tests.certificates import sign
from tests.token_server import CLIENT, TokenServer
from tests.tokens import AUDIENCE, ISSUER

MECHANISM = "SCRAM-SHA-512"
USER, PASSWORD = "compat", "s3cret"
LISTENER = "SECURE"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN, TOKEN = "PLAIN", "OAUTHBEARER"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Login(NamedTuple):
    """The user of one broker. `key` is the file with the broker's key, `authority` that with its authority."""

    key: str
    authority: str
    user: str = USER
    password: str = PASSWORD
    again_ms: int = 0
    """Time after which the broker wants another login; 0 for never."""
    mechanism: str = MECHANISM
    token_url: str = ""
    """The token server for OAUTHBEARER. User and password are its client then."""

    @property
    def scram(self) -> str:
        """The user as `--add-scram` takes it."""
        return f"{MECHANISM}=[name={self.user},password={self.password}]"

    def to_argument(self) -> str:
        """Returns the second argument of a driver."""
        words = {"user": self.user, "password": self.password, "mechanism": self.mechanism}
        return json.dumps({**words, "authority": self.authority, "token_url": self.token_url})

    def to_librdkafka(self) -> dict[str, str]:
        """Returns the settings of a client on librdkafka."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
            "ssl.ca.location": self.authority,
        }

    def write_properties(self, path: Path, *, token: bool = False) -> Path:
        """Writes the properties of a Java client; with `token`, user and password are those of a delegation token."""
        extension = ' tokenauth="true"' if token else ""
        path.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism={MECHANISM}\n"
            f'sasl.jaas.config={SCRAM_MODULE} required username="{self.user}" password="{self.password}"{extension};\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.authority}\n"
        )
        return path


def make_login(directory: Path, again_ms: int = 0) -> Login:
    """Returns a user, and a new authority with a key that it has signed, in files of a directory."""
    authority = sign("CN=compat-authority")
    file = directory / "authority.pem"
    file.write_text(authority.certificate_pem)
    key = sign("CN=localhost", authority).write(directory / "broker.pem")
    return Login(key, str(file), again_ms=again_ms)


def secure_settings(plain: str, secure: str, login: Login, tokens: TokenServer | None) -> dict[str, str]:
    """Returns the settings of a broker with a listener of each kind. Clients without a login are administrators. With a
    token server, the user of SCRAM is one of PLAIN too, and the listener takes tokens."""
    settings = {
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{LISTENER}:SASL_SSL",
        "listeners": f"PLAINTEXT://{plain},{LISTENER}://{secure}",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": MECHANISM,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": login.key,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{login.user};User:{CLIENT}",
        "delegation.token.secret.key": "compat",
        "connections.max.reauth.ms": str(login.again_ms),
    }
    if tokens is None:
        return settings
    return settings | {
        "sasl.enabled.mechanisms": f"{MECHANISM},{PLAIN},{TOKEN}",
        f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} required user_{login.user}="{login.password}";'
        ),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }
