"""TLS of the command line: `-X security.protocol=SSL` and the options of its certificates, by librdkafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tiered.clients.properties import PROTOCOL, is_host_checked, read_key_store, read_trust_store
from tiered.errors import Code, Refused
from tiered.ports import Net
from tiered.security.secret import Secret
from tiered.system.clock import SystemClock
from tiered.system.network import SocketNet
from tiered.system.tls import TlsNet
from tiered.system.tls_contexts import TlsContexts
from tiered.system.tls_options import Store, TlsOptions
from tiered_api.cli.client_settings import ClientSettings

CA = "ssl.ca.location"
CERTIFICATE, KEY, PASSWORD = "ssl.certificate.location", "ssl.key.location", "ssl.key.password"
ENDPOINT_CHECK = "ssl.endpoint.identification.algorithm"
EXTRAS = (PROTOCOL, CA, CERTIFICATE, KEY, PASSWORD, ENDPOINT_CHECK)
KEY_STORE = ("ssl.keystore.location", "ssl.keystore.key")
TRUST_STORE = ("ssl.truststore.location", "ssl.truststore.certificates")
"""Properties of Kafka's clients for the same."""
PLAINTEXT, SSL = ("PLAINTEXT", "SASL_PLAINTEXT"), ("SSL", "SASL_SSL")
FILE_CHARS_MAX = 1 << 20


def open_net(settings: ClientSettings) -> Net:
    """Returns the network of a client, with TLS if its settings ask for it.

    Raises `Refused` for a setting that is wrong, or for an option that has no effect.
    """
    protocol = settings.get(PROTOCOL).upper() or PLAINTEXT[0]
    if protocol not in (*PLAINTEXT, *SSL):
        known = f"{', '.join((*PLAINTEXT, SSL[0]))} or {SSL[1]}"
        raise Refused(Code.INVALID_REQUEST, f"{PROTOCOL}={protocol}: it must be {known}")
    if protocol in PLAINTEXT:
        unused = next((name for name in EXTRAS if name != PROTOCOL and settings.is_option(name)), None)
        if unused:
            raise Refused(
                Code.INVALID_REQUEST, f"-X {unused}: it has no effect without -X {PROTOCOL}={' or '.join(SSL)}"
            )
        return SocketNet()
    made = make_tls_options(settings)
    contexts = TlsContexts(lambda: made, SystemClock(), at_listener=False)
    contexts.check()
    return TlsNet(SocketNet(), connect_to=contexts.connect_to)


def make_tls_options(settings: ClientSettings) -> TlsOptions:
    """Returns the options of TLS. Raises `Refused` for a setting that is wrong."""
    options = {name: settings.get(name) for name in EXTRAS}
    checks_host = is_host_checked(settings.first(ENDPOINT_CHECK, "https"))
    if bool(options[CERTIFICATE]) != bool(options[KEY]):
        raise Refused(Code.INVALID_REQUEST, f"a certificate of a client needs both {CERTIFICATE} and {KEY}")
    key, trust = read_key_store(settings.properties), read_trust_store(settings.properties)
    if options[KEY] and not (key and settings.is_behind((CERTIFICATE, KEY), KEY_STORE)):
        key = Store(
            certificates=_read(CERTIFICATE, options),
            key=Secret(_read(KEY, options)),
            password=Secret(options[PASSWORD]),
        )
    if options[CA] and not (trust and settings.is_behind((CA,), TRUST_STORE)):
        trust = Store(location=options[CA])
    return TlsOptions(key, trust, checks_host=checks_host)


def _read(name: str, options: Mapping[str, str]) -> str:
    if not options[name]:
        return ""
    try:
        with Path(options[name]).open(encoding="ascii") as file:
            return file.read(FILE_CHARS_MAX)
    except OSError as error:
        raise Refused(Code.INVALID_REQUEST, f"{name}={options[name]}: it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused(Code.INVALID_REQUEST, f"{name}={options[name]}: it must have the form PEM") from None
