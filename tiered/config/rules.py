"""Rules between several settings, and the form of list values.

Each function raises `Refused` (INVALID_CONFIG) with the setting, its value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from tiered.config.group_config import GroupBounds, GroupConfig, check_group
from tiered.config.ip_overrides import read_ip_overrides
from tiered.config.listener_overrides import PLAIN_USERS, PREFIX, ListenerOverride
from tiered.config.listeners import Endpoint
from tiered.config.setting import SettingRow
from tiered.errors import Code, Refused
from tiered.security import sasl_plain
from tiered.security.principal_mapping import parse_mapping_rules
from tiered.security.secret import Secret

_REPLICA = re.compile(r"\d+:\d+")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")
_REPLICA_LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


class TopicValues(Protocol):
    """The topic settings that the rules read."""

    @property
    def min_compaction_lag_ms(self) -> int: ...
    @property
    def max_compaction_lag_ms(self) -> int: ...
    @property
    def retention_ms(self) -> int: ...
    @property
    def retention_bytes(self) -> int: ...
    @property
    def remote_storage_enable(self) -> bool: ...
    @property
    def local_retention_ms(self) -> int: ...
    @property
    def local_retention_bytes(self) -> int: ...
    @property
    def leader_replication_throttled_replicas(self) -> tuple[str, ...]: ...
    @property
    def follower_replication_throttled_replicas(self) -> tuple[str, ...]: ...


class BrokerValues(GroupBounds, Protocol):
    """The broker settings that the rules read."""

    @property
    def broker_heartbeat_interval_ms(self) -> int: ...
    @property
    def broker_session_timeout_ms(self) -> int: ...
    @property
    def tiered_http_allowed_hosts(self) -> Sequence[str]: ...
    @property
    def max_connections_per_ip(self) -> int: ...
    @property
    def max_connections_per_ip_overrides(self) -> tuple[str, ...]: ...
    @property
    def authentication_method(self) -> Sequence[str]: ...
    @property
    def uses_tokens(self) -> bool: ...
    @property
    def sasl_oauthbearer_jwks_endpoint_url(self) -> str: ...
    @property
    def tiered_trace_otlp_endpoint(self) -> str: ...
    @property
    def sasl_oauthbearer_expected_issuer(self) -> str: ...
    @property
    def sasl_oauthbearer_expected_audience(self) -> Sequence[str]: ...
    @property
    def sasl_oauthbearer_sub_claim_name(self) -> str: ...
    @property
    def tiered_sasl_oauthbearer_allowed_urls(self) -> Sequence[str]: ...
    @property
    def inter_broker_listener_name(self) -> str: ...
    @property
    def security_inter_broker_protocol(self) -> str: ...
    @property
    def http_scheme(self) -> str: ...
    @property
    def ssl_keystore_location(self) -> str: ...
    @property
    def ssl_keystore_key(self) -> Secret: ...
    @property
    def ssl_principal_mapping_rules(self) -> str: ...
    @property
    def sasl_enabled_mechanisms(self) -> Sequence[str]: ...
    @property
    def controller_listener_names(self) -> Sequence[str]: ...
    @property
    def listener_overrides(self) -> Sequence[ListenerOverride]: ...

    def for_listener(self, name: str) -> BrokerValues:
        """Returns the settings that are in force for a listener."""
        ...

    def plain_users(self, listener: str) -> Mapping[str, Secret]:
        """Returns the users of a listener that log in by PLAIN."""
        ...

    def effective_listeners(self) -> Sequence[Endpoint]:
        """Returns the listeners of the Kafka protocol."""
        ...


def check_topic(config: TopicValues, table: Mapping[str, SettingRow]) -> None:
    """Checks rules between topic settings, and the form of the lists of throttled replicas.

    A local copy cannot be kept longer than the record itself (Kafka's rule). Without tiering there are no local copies,
    and the settings of local retention mean nothing.
    """
    pairs = (
        ("retention.ms", config.retention_ms, "local.retention.ms", config.local_retention_ms),
        ("retention.bytes", config.retention_bytes, "local.retention.bytes", config.local_retention_bytes),
    )
    for name, total, local_name, local in pairs:
        if config.remote_storage_enable and total >= 0 and (local > total or local == -1):
            raise table[local_name].refuse(str(local), f"it must not exceed {name}={total}")
    if config.max_compaction_lag_ms < config.min_compaction_lag_ms:
        why = f"it must not be less than min.compaction.lag.ms={config.min_compaction_lag_ms}"
        raise table["max.compaction.lag.ms"].refuse(str(config.max_compaction_lag_ms), why)
    lists = (config.leader_replication_throttled_replicas, config.follower_replication_throttled_replicas)
    for name, words in zip(_REPLICA_LISTS, lists, strict=True):
        if words != ("*",) and not all(_REPLICA.fullmatch(word) for word in words):
            raise table[name].refuse(",".join(words), "it must be PARTITION:BROKER,PARTITION:BROKER,... or *")


def check_broker(settings: BrokerValues, table: Mapping[str, SettingRow]) -> None:
    """Checks rules between broker settings: heartbeat intervals, allowed hosts and the inter-broker listener.

    A broker must send more than two heartbeats per session timeout. Otherwise one late heartbeat would look like a lost
    broker, and the controller would keep changing.
    """
    heartbeat, session = settings.broker_heartbeat_interval_ms, settings.broker_session_timeout_ms
    if heartbeat * 2 >= session:
        why = f"it must be less than half of broker.session.timeout.ms={session}"
        raise table["broker.heartbeat.interval.ms"].refuse(str(heartbeat), why)
    for name in settings.tiered_http_allowed_hosts:
        if name != "*" and not _HOST_NAME.fullmatch(name):
            raise table["tiered.http.allowed.hosts"].refuse(
                name, "it must be a host name without scheme and port, or *"
            )
    check_group(GroupConfig.of_broker(settings), settings, table, prefix="group.")
    read_ip_overrides(settings.max_connections_per_ip_overrides)
    methods = settings.authentication_method
    if not methods or ("NONE" in methods and len(methods) > 1):
        raise table["authentication.method"].refuse(",".join(methods), "it must be NONE, or a list of the others")
    named, names = settings.inter_broker_listener_name, [each.name for each in settings.effective_listeners()]
    if named and named not in names:
        why = f"no listener has that name; there are: {', '.join(names) or 'none'}"
        raise table["inter.broker.listener.name"].refuse(named, why)
    _check_tokens(settings, table)
    _check_traces(settings, table)
    _check_encryption(settings, table)
    _check_overrides(settings, table)


def check_addresses(settings: BrokerValues, table: Mapping[str, SettingRow]) -> None:
    """Checks that some address may connect (Kafka's rule). A broker that runs does not ask: it would end."""
    if settings.max_connections_per_ip == 0 and not settings.max_connections_per_ip_overrides:
        why = "without max.connections.per.ip.overrides nobody could connect"
        raise table["max.connections.per.ip"].refuse("0", why)


def _check_encryption(settings: BrokerValues, table: Mapping[str, SettingRow]) -> None:
    """Checks that TLS has a key, and that the protocol between brokers is that of a listener."""
    endpoints, protocol = settings.effective_listeners(), settings.security_inter_broker_protocol
    named = settings.inter_broker_listener_name
    if protocol and named and protocol not in [each.protocol for each in endpoints if each.name == named]:
        why = f"inter.broker.listener.name={named} has another protocol; only one of the two can be set"
        raise table["security.inter.broker.protocol"].refuse(protocol, why)
    if protocol and protocol not in [each.protocol for each in endpoints]:
        raise table["security.inter.broker.protocol"].refuse(protocol, "no listener has that protocol")
    without_key = [
        each.name for each in endpoints if each.is_encrypted and not _has_key(settings.for_listener(each.name))
    ]
    without_key += ["http"] if settings.http_scheme == "https" and not _has_key(settings) else []
    if without_key:
        why = f"the listener {without_key[0]} needs a key and a certificate"
        raise table["ssl.keystore.location"].refuse("", why)


def _check_tokens(settings: BrokerValues, table: Mapping[str, SettingRow]) -> None:
    """Checks that tokens have keys from a place that is allowed, an issuer and an audience. Without them, tokens for
    any other service would log in here."""
    if not settings.uses_tokens:
        return
    name, url = "sasl.oauthbearer.jwks.endpoint.url", settings.sasl_oauthbearer_jwks_endpoint_url
    if not url:
        raise table[name].refuse(url, "logins by token need the public keys of the issuer")
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError as error:
        raise table[name].refuse(url, f"it is no URL: {error}") from None
    if parts.scheme != "file":
        if not host:
            raise table[name].refuse(url, "it has no host")
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            raise table[name].refuse(url, "it must begin with file:/// or https://")
        if url not in settings.tiered_sasl_oauthbearer_allowed_urls:
            raise table[name].refuse(url, "tiered.sasl.oauthbearer.allowed.urls does not have it")
    elif parts.netloc or not parts.path:
        raise table[name].refuse(url, "a file must have the form file:///PATH")
    for needed, value in (
        ("sasl.oauthbearer.expected.issuer", settings.sasl_oauthbearer_expected_issuer),
        ("sasl.oauthbearer.expected.audience", settings.sasl_oauthbearer_expected_audience),
        ("sasl.oauthbearer.sub.claim.name", settings.sasl_oauthbearer_sub_claim_name),
    ):
        if not value:
            raise table[needed].refuse("", "logins by token need it: a token for another service is no login here")


def _check_traces(settings: BrokerValues, table: Mapping[str, SettingRow]) -> None:
    """Checks that traces go to a URL that OTLP over HTTP can have."""
    url = settings.tiered_trace_otlp_endpoint
    if not url:
        return
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        why = "it must be a URL such as http://collector:4318/v1/traces"
        raise table["tiered.trace.otlp.endpoint"].refuse(url, why)


def _has_key(settings: BrokerValues) -> bool:
    return bool(settings.ssl_keystore_location or settings.ssl_keystore_key)


def _check_overrides(settings: BrokerValues, table: Mapping[str, SettingRow]) -> None:
    """Checks that settings of single listeners have a listener, and that PLAIN has users."""
    endpoints = settings.effective_listeners()
    names = {each.name for each in endpoints} | {each.upper() for each in settings.controller_listener_names}
    for override in settings.listener_overrides:
        if override.listener not in names:
            name = f"{PREFIX}{override.listener.lower()}.{override.name}"
            raise Refused(Code.INVALID_CONFIG, f"{name}: no listener has that name; there are: {', '.join(names)}")
    parse_mapping_rules(settings.ssl_principal_mapping_rules)
    for each in endpoints:
        parse_mapping_rules(settings.for_listener(each.name).ssl_principal_mapping_rules)
        mechanisms = settings.for_listener(each.name).sasl_enabled_mechanisms
        if each.requires_login and sasl_plain.MECHANISM in mechanisms and not settings.plain_users(each.name):
            why = f"{sasl_plain.MECHANISM} needs users in {PREFIX}{each.name.lower()}.{PLAIN_USERS}"
            raise table["sasl.enabled.mechanisms"].refuse(",".join(mechanisms), why)
