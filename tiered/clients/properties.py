"""The properties of a client of Kafka: those that say how a connection is made.

They may be the settings of a whole client. A setting of TLS or of the login that would have no effect is refused, and
no error has any secret of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tiered.config.properties import parse_properties
from tiered.errors import Code, Refused
from tiered.security.jaas import LoginModule, parse_jaas
from tiered.security.secret import Secret
from tiered.system.tls_options import PEM, PKCS12, Store, TlsOptions

FILE_CHARS_MAX = 1 << 20
PROTOCOL, MECHANISM, USER, PASSWORD = "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password"
"""The last two are librdkafka's names for what the login module has."""
JAAS = "sasl.jaas.config"
TOKEN_LOGIN = "tokenauth"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
URL_ENCODE = "sasl.oauthbearer.header.urlencode"
EXTENSION = "extension_"
"""Begins the options of a login module that go to the broker with the token."""
TOKEN_TRUST = "token."
"""Begins the options of a login module that say which token servers are trusted: `token.ssl.truststore.location`."""
BROKERS, TIMEOUT_MS = "bootstrap.servers", "request.timeout.ms"
_USER_MODULES, _TOKEN_MODULE = ("ScramLoginModule", "PlainLoginModule"), "OAuthBearerLoginModule"
_TOKEN_OPTIONS = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "scope": SCOPE}
_TRUST_STORE = tuple(f"ssl.truststore.{name}" for name in ("type", "location", "password", "certificates"))
_CONNECTION = {
    PROTOCOL,
    MECHANISM,
    JAAS,
    TOKEN_URL,
    CLIENT_ID,
    CLIENT_SECRET,
    SCOPE,
    URL_ENCODE,
    *_TRUST_STORE,
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
}
_WITHOUT_EFFECT = {
    *("ssl.protocol", "ssl.enabled.protocols", "ssl.provider", "sasl.login.class"),
    *("sasl.oauthbearer.jwt.validator.class", "sasl.oauthbearer.scope.claim.name", "sasl.oauthbearer.sub.claim.name"),
}
"""Settings that OpenSSL decides, that only Java needs, or that say how a client looks into its own token."""
_WITHOUT_EFFECT_PREFIXES = ("sasl.login.connect.", "sasl.login.read.", "sasl.login.refresh.", "sasl.login.retry.")
_CLASSES = {
    "sasl.login.callback.handler.class": ("OAuthBearerLoginCallbackHandler",),
    "sasl.oauthbearer.jwt.retriever.class": (
        "DefaultJwtRetriever",
        "ClientCredentialsJwtRetriever",
        "FileJwtRetriever",
    ),
}
"""Settings that name a Java class, and the classes that do what we do."""


def is_connection_property(name: str) -> bool:
    """True for a property that `choose_properties` takes, or knows to be without effect."""
    known = name in _CONNECTION or name in _WITHOUT_EFFECT or name in _CLASSES
    return known or name.startswith(_WITHOUT_EFFECT_PREFIXES)


def read_properties_file(path: str, where: str) -> dict[str, str]:
    """Returns the properties in a file. Raises `Refused` that begins with `where`."""
    try:
        with Path(path).open(encoding="utf-8") as opened:
            return dict(parse_properties(opened.read(FILE_CHARS_MAX)))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _refuse(where, f"it cannot be read: {reason}") from None


def choose_properties(given: Mapping[str, str], where: str) -> dict[str, str]:
    """Returns the properties that say how a connection is made. In place of the login module are its options, under
    the names of properties. Raises `Refused` that begins with `where`."""
    made = {}
    for name, value in given.items():
        if name in _CONNECTION or name in (BROKERS, TIMEOUT_MS):
            made[name] = value.strip()
        elif name in _CLASSES:
            if value.strip().rpartition(".")[2] not in _CLASSES[name]:
                raise _refuse(where, f"{name}: it must be {' or '.join(_CLASSES[name])}")
        elif name.startswith(("ssl.", "sasl.")) and not is_connection_property(name) and value.strip():
            raise _refuse(where, f"{name} is not supported")
    if JAAS in made:
        made = {**_read_module(where, made.pop(JAAS)), **made}
    for kind in ("ssl.truststore.type", "ssl.keystore.type"):
        location = kind.replace("type", "location")
        if location in made and made.get(kind, "JKS") not in (PEM, PKCS12):
            raise _refuse(
                where, f"{kind}={made.get(kind, 'JKS')}: it must be PEM or PKCS12 (keytool turns JKS into it)"
            )
    return made


def read_trust_store(properties: Mapping[str, str], prefix: str = "") -> Store:
    """Returns the certificates of authorities."""
    kind, location, password, certificates = (properties.get(prefix + name, "") for name in _TRUST_STORE)
    return Store(kind or PEM, location, Secret(password), certificates)


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


def read_tls_options(properties: Mapping[str, str]) -> TlsOptions:
    """Returns the options of TLS. Raises `Refused` for a check of hosts that is not known."""
    return TlsOptions(
        read_key_store(properties),
        read_trust_store(properties),
        checks_host=is_host_checked(properties.get("ssl.endpoint.identification.algorithm", "https")),
    )


def is_host_checked(check: str) -> bool:
    """Returns what a value of `ssl.endpoint.identification.algorithm` says. Raises `Refused` for an unknown one."""
    if check not in ("https", "none", ""):
        raise Refused(Code.INVALID_REQUEST, f"ssl.endpoint.identification.algorithm={check}: it must be https or none")
    return check == "https"


def _read_module(where: str, text: str) -> dict[str, str]:
    try:
        module = parse_jaas(text)
    except Refused as refused:
        raise _refuse(where, refused.why) from None
    if module.short_name == _TOKEN_MODULE:
        return _read_token_options(where, module)
    user, password = module.options.get("username"), module.options.get("password")
    if module.short_name not in _USER_MODULES or not user or not password:
        raise _refuse(
            where,
            f"{JAAS} must name {' or '.join(_USER_MODULES)} with username and password, or {_TOKEN_MODULE}",
        )
    return {USER: user, PASSWORD: password, TOKEN_LOGIN: module.options.get("tokenauth", "")}


def _read_token_options(where: str, module: LoginModule) -> dict[str, str]:
    """Returns the options of a login by token. Those for TLS are for the token server."""
    made = {}
    for name, value in module.options.items():
        if name in _TOKEN_OPTIONS:
            made[_TOKEN_OPTIONS[name]] = value
        elif name.startswith(EXTENSION):
            made[name] = value
        elif name in _TRUST_STORE:
            made[TOKEN_TRUST + name] = value
        else:
            raise _refuse(where, f"{JAAS}: the option {name[:100]} of {_TOKEN_MODULE} is not supported")
    return made


def _refuse(where: str, why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"{where}: {why}")
