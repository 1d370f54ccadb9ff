"""`--command-config FILE`: the properties of a client of Kafka, such as its tools take them.

The file may have the settings of a whole client. Those that say how a connection is made are used, and of the others
none is read. A setting of TLS or of the login that would have no effect is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tiered.config.properties import parse_properties
from tiered.errors import Code, Refused
from tiered.security.jaas import parse_jaas
from tiered.security.secret import Secret
from tiered.system.tls_options import PEM, PKCS12, Store

OPTION = "--command-config"
FILE_CHARS_MAX = 1 << 20
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
JAAS = "sasl.jaas.config"
TOKEN_LOGIN = "tokenauth"
_LOGIN_MODULES = ("ScramLoginModule", "PlainLoginModule")
_CONNECTION = {
    "security.protocol",
    "sasl.mechanism",
    JAAS,
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
}
_WITHOUT_EFFECT = {"ssl.protocol", "ssl.enabled.protocols", "ssl.provider", "sasl.login.class"}
"""Settings that OpenSSL decides, or that only Java needs."""


def read_client_properties(file: str | None) -> Mapping[str, str]:
    """Returns the properties of a file that say how a connection is made, with the user of the login module as
    `sasl.username` and `sasl.password`. Raises `Refused` without any secret of the file."""
    if file is None:
        return NO_PROPERTIES
    try:
        with Path(file).open(encoding="utf-8") as opened:
            given = dict(parse_properties(opened.read(FILE_CHARS_MAX)))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _refuse(file, f"it cannot be read: {reason}") from None
    made = {}
    for name, value in given.items():
        if name in _CONNECTION:
            made[name] = value.strip()
        elif name == "bootstrap.servers":
            made["brokers"] = value
        elif name == "request.timeout.ms":
            made["timeout"] = _to_seconds(file, value)
        elif name.startswith(("ssl.", "sasl.")) and name not in _WITHOUT_EFFECT and value.strip():
            raise _refuse(file, f"{name} is not supported")
    if JAAS in made:
        made.update(_read_user(file, made.pop(JAAS)))
    for kind in ("ssl.truststore.type", "ssl.keystore.type"):
        location = kind.replace("type", "location")
        if location in made and made.get(kind, "JKS") not in (PEM, PKCS12):
            raise _refuse(file, f"{kind}={made.get(kind, 'JKS')}: it must be PEM or PKCS12 (keytool turns JKS into it)")
    return made


def find_option(name: str, extra: Mapping[str, str], properties: Mapping[str, str]) -> str:
    """Returns an option of `-X`, else of the file of properties, else of the environment; without all, an empty
    text."""
    return extra.get(name) or properties.get(name) or os.environ.get(environment_variable(name), "")


def environment_variable(name: str) -> str:
    """Returns the variable that has an option for all commands."""
    return "TIERED_" + name.upper().replace(".", "_")


def read_trust_store(properties: Mapping[str, str]) -> Store:
    """Returns the certificates of authorities."""
    return Store(
        properties.get("ssl.truststore.type", PEM),
        properties.get("ssl.truststore.location", ""),
        Secret(properties.get("ssl.truststore.password", "")),
        properties.get("ssl.truststore.certificates", ""),
    )


def read_key_store(properties: Mapping[str, str]) -> Store:
    """Returns the key of the client and its certificates."""
    kind = properties.get("ssl.keystore.type", PEM)
    return Store(
        kind,
        properties.get("ssl.keystore.location", ""),
        Secret(properties.get("ssl.key.password" if kind == PEM else "ssl.keystore.password", "")),
        properties.get("ssl.keystore.certificate.chain", ""),
        Secret(properties.get("ssl.keystore.key", "")),
    )


def _read_user(file: str, text: str) -> dict[str, str]:
    try:
        module = parse_jaas(text)
    except Refused as refused:
        raise _refuse(file, refused.why) from None
    user, password = module.options.get("username"), module.options.get("password")
    if module.short_name not in _LOGIN_MODULES or not user or not password:
        raise _refuse(file, f"{JAAS} must name {' or '.join(_LOGIN_MODULES)} with username and password")
    return {"sasl.username": user, "sasl.password": password, TOKEN_LOGIN: module.options.get("tokenauth", "")}


def _to_seconds(file: str, text: str) -> str:
    if not text.strip().isdecimal():
        raise _refuse(file, "request.timeout.ms must be a number")
    return str(int(text.strip()[:9]) / 1000)


def _refuse(file: str, why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"{OPTION} {file}: {why}")
