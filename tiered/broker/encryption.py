"""TLS of one broker: its settings as options, and the Net between brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from tiered.config.exposure import check_exposure
from tiered.config.settings import Settings
from tiered.errors import Refused
from tiered.metrics import Metrics
from tiered.ports import Clock, Net
from tiered.security.certificates import ListenerCertificate, describe_problems, judge
from tiered.security.x509 import Certificate
from tiered.system.tls import TlsNet
from tiered.system.tls_contexts import TlsContexts
from tiered.system.tls_options import Store, TlsOptions

log = logging.getLogger(__name__)

HTTP_LISTENER = "http"
"""Name of the https listener: that of its setting."""


def tls_options(settings: Settings) -> TlsOptions:
    """Returns the options of TLS that the settings name."""
    return TlsOptions(
        key=Store(
            settings.ssl_keystore_type,
            settings.ssl_keystore_location,
            settings.ssl_keystore_password or settings.ssl_key_password,
            settings.ssl_keystore_certificate_chain,
            settings.ssl_keystore_key,
        ),
        trust=Store(
            settings.ssl_truststore_type,
            settings.ssl_truststore_location,
            settings.ssl_truststore_password,
            settings.ssl_truststore_certificates,
        ),
        client_auth=settings.ssl_client_auth,
        protocols=settings.ssl_enabled_protocols,
        ciphers=settings.ssl_cipher_suites,
        checks_host=bool(settings.ssl_endpoint_identification_algorithm),
    )


class ListenerTls:
    """TLS of a broker: the contexts of each listener, and those of the settings without a listener."""

    def __init__(self, settings: Callable[[], Settings], startup: Settings, clock: Clock, metrics: Metrics) -> None:
        self._given = settings
        self._startup = startup
        self._clock = clock
        self._judged = startup, startup
        """The settings that were looked at last, and what is used of them."""
        self.shared = TlsContexts(lambda: tls_options(self._settings()), clock, fallback=tls_options(startup))
        """For HTTP, and for listeners without settings of their own."""
        self._own: dict[str, TlsContexts] = {}
        metrics.gauge(
            "tiered_tls_certificate_expiry_timestamp_seconds",
            "Time at which the certificate of a listener expires, in seconds since 1970.",
            ("listener",),
        ).set_function(
            lambda: {(each.listener,): each.certificate.not_after_ms / 1000 for each in self.list_certificates()}
        )
        metrics.gauge(
            "tiered_tls_certificate_rejected",
            "1 if a new certificate or setting of TLS of a listener is not used, else 0.",
            ("listener",),
        ).set_function(lambda: {(each.listener,): float(bool(each.rejected)) for each in self.list_certificates()})

    def of_listener(self, name: str) -> TlsContexts:
        """Returns the contexts of a listener."""
        settings = self._settings()
        if settings.for_listener(name) is settings:
            return self.shared
        if name not in self._own:
            self._own[name] = TlsContexts(
                lambda: tls_options(self._settings().for_listener(name)),
                self._clock,
                fallback=tls_options(self._startup.for_listener(name)),
            )
        return self._own[name]

    def list_certificates(self) -> list[ListenerCertificate]:
        """Looks for new certificates, and returns that of each listener that has one. The https listener is `http`."""
        startup = self._startup
        by_listener = {
            each.name: self.of_listener(each.name) for each in startup.effective_listeners() if each.is_encrypted
        }
        if startup.http_scheme == "https":
            by_listener[HTTP_LISTENER] = self.shared
        for each in set(by_listener.values()):
            each.look()
        between = startup.inter_broker_endpoint()
        trusted_by_brokers = between.name if between is not None else ""
        return [
            ListenerCertificate(
                name, each.certificate, each.rejected, each.distrusted if name == trusted_by_brokers else ""
            )
            for name, each in by_listener.items()
            if each.certificate is not None
        ]

    def describe_problems(self) -> Iterator[str]:
        """Yields a sentence for each problem of a certificate."""
        return describe_problems(self.list_certificates(), self._clock.wall_ms(), self._warning_days)

    def judge(self, certificate: Certificate) -> str:
        """Returns the state of a certificate now."""
        return judge(certificate, self._clock.wall_ms(), self._warning_days)

    @property
    def _warning_days(self) -> int:
        return self._given().tiered_certificate_expiry_warning_days

    def _settings(self) -> Settings:
        """Returns the settings in force, with the `ssl.client.auth` of the start if theirs would open an address to
        everybody. The controller refuses such a change by its own addresses, and does not know those of others."""
        given, used = self._judged
        found = self._given()
        if found is given:
            return used
        used = found
        try:
            check_exposure(found, self._startup)
        except Refused as refused:
            log.error("ssl.client.auth of the cluster is not used: that of the start is reason=%s", refused.why)
            used = replace(found, ssl_client_auth=self._startup.ssl_client_auth)
        self._judged = found, used
        return used


def inter_broker_net(net: Net, settings: Settings, tls: Callable[[], ListenerTls]) -> Net:
    """Returns the Net for connections to other brokers: with TLS if the listener for brokers has it."""
    endpoint = settings.inter_broker_endpoint()
    if endpoint is None or not endpoint.is_encrypted:
        return net
    return TlsNet(net, connect_to=lambda host: tls().of_listener(endpoint.name).connect_to(host))
