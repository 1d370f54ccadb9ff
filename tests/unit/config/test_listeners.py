"""Tests of listeners: Kafka's syntax, refusals, and the addresses for clients."""

from __future__ import annotations

import pytest

from tiered.config.listeners import Endpoint
from tiered.config.settings import Settings
from tiered.errors import Code, Refused


def bound_addresses(**given: str) -> tuple[Endpoint, ...]:
    """Returns the listeners of a broker with these settings."""
    return Settings.from_strings({name.replace("_", "."): text for name, text in given.items()}).effective_listeners()


def advertised(hostname: str = "here", **given: str) -> list[str]:
    """Returns the listeners that its clients get."""
    settings = Settings.from_strings({name.replace("_", "."): text for name, text in given.items()})
    return [
        f"{each.name} {each.address}"
        for each in settings.resolve_advertised_listeners(settings.effective_listeners(), hostname)
    ]


def test_short_form_is_one_listener() -> None:
    assert bound_addresses() == (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)
    assert bound_addresses(kafka="[::1]:0") == (Endpoint("PLAINTEXT", "::1", 0),)
    assert bound_addresses(kafka="") == ()


def test_kafkas_form_replaces_the_short_one_without_controllers() -> None:
    assert bound_addresses(
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093", controller_listener_names="CONTROLLER"
    ) == (Endpoint("PLAINTEXT", "0.0.0.0", 9092),)
    assert bound_addresses(listeners="inside://10.0.0.1:9092, OUTSIDE://0.0.0.0:9094") == (
        Endpoint("INSIDE", "10.0.0.1", 9092),
        Endpoint("OUTSIDE", "0.0.0.0", 9094),
    )


def test_clients_get_advertised_addresses_or_else_the_listeners() -> None:
    listeners = "A://10.0.0.1:9092,B://0.0.0.0:9094"
    assert advertised(listeners=listeners) == ["A 10.0.0.1:9092", "B here:9094"]
    assert advertised(listeners=listeners, advertised_listeners="B://kafka.example.org:443") == [
        "A 10.0.0.1:9092",
        "B kafka.example.org:443",
    ]
    assert advertised(kafka="0.0.0.0:9092", advertised_listeners="PLAINTEXT://[::1]:9092") == ["PLAINTEXT [::1]:9092"]


TWO = {
    "listeners": "IN://:9092,OUT://:9093,SSL://:9094",
    "listener_security_protocol_map": "IN:PLAINTEXT,out:ssl",
    "ssl_keystore_location": "/broker.pem",
}


def test_each_listener_has_a_protocol_by_the_map_or_its_name() -> None:
    assert [each.protocol for each in bound_addresses(**TWO)] == ["PLAINTEXT", "SSL", "SSL"]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, ""),
        ({"security_inter_broker_protocol": "SSL"}, "OUT"),
        ({"inter_broker_listener_name": "ssl", "security_inter_broker_protocol": "SSL"}, "SSL"),
    ],
)
def test_listener_for_brokers_is_found_by_name_or_protocol(given: dict[str, str], name: str) -> None:
    texts = {key.replace("_", "."): text for key, text in {**TWO, **given}.items()}
    settings = Settings.from_strings(texts)
    endpoint = settings.inter_broker_endpoint()
    assert endpoint is not None and endpoint.name == (name or "IN")
    assert settings.inter_broker_listener_name == name
    assert Settings.from_strings({"log.level": "error"}, defaults=settings).inter_broker_listener_name == name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kafka": "nowhere"}, "kafka=nowhere: it must be HOST:PORT"),
        ({"listeners": "10.0.0.1:9092"}, "listeners=10.0.0.1:9092: it must be NAME://HOST:PORT"),
        ({"listeners": "A://:1,A://:2"}, "the name A is given twice"),
        ({"listeners": "SASL_SSL://:9092"}, "the listener SASL_SSL needs a key"),
        ({"listeners": "A://:1", "listener_security_protocol_map": "A:TLS"}, "TLS is no protocol of a listener"),
        ({"listeners": "A://:9092", "listener_security_protocol_map": "A:SSL"}, "the listener A needs a key"),
        ({"security_inter_broker_protocol": "SSL"}, "no listener has that protocol"),
        (
            {**TWO, "security_inter_broker_protocol": "PLAINTEXT", "inter_broker_listener_name": "OUT"},
            "inter.broker.listener.name=OUT has another protocol",
        ),
        ({"advertised_listeners": "B://host:1"}, "no listener has that name"),
        ({"advertised_listeners": "PLAINTEXT://0.0.0.0:9092"}, "it must name a host that clients can reach"),
    ],
)
def test_invalid_listeners_are_refused_with_a_reason(given: dict[str, str], words: str) -> None:
    with pytest.raises(Refused) as refused:
        bound_addresses(**given)
    assert refused.value.code is Code.INVALID_CONFIG and words in refused.value.why


def test_protocol_map_of_kafkas_stock_file_is_accepted() -> None:
    stock = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
    assert bound_addresses(listener_security_protocol_map=stock) == bound_addresses()


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("", ""),
        ("kafka.example.org:8082", "http://kafka.example.org:8082"),
        ("127.0.0.1:0", "http://127.0.0.1:40000"),
        ("[::1]:80", "http://[::1]:80"),
        ("https://kafka.example.org", "https://kafka.example.org"),
        ("http://10.0.0.1:8083", "http://10.0.0.1:8083"),
    ],
)
def test_http_clients_get_the_advertised_origin(given: str, origin: str) -> None:
    assert Settings.from_strings({"advertised.http": given}).resolve_advertised_http(40000) == origin


@pytest.mark.parametrize(
    "given",
    ["kafka.example.org", "0.0.0.0:80", "[::]:80", "ftp://a:1", "http://a/b", "a:70000", "http://", "a b:1", ":80"],
)
def test_other_forms_of_advertised_http_are_refused(given: str) -> None:
    with pytest.raises(Refused, match=r"advertised\.http=.*it must be HOST:PORT or") as refused:
        Settings.from_strings({"advertised.http": given})
    assert refused.value.code is Code.INVALID_CONFIG


def test_http_with_tls_is_advertised_with_https() -> None:
    given = {"http": "https://127.0.0.1:8443", "ssl.keystore.location": "/broker.pem"}
    settings = Settings.from_strings(given)
    assert (settings.http_scheme, settings.http_address) == ("https", "127.0.0.1:8443")
    for advertised_http, origin in (("host:0", "https://host:8443"), ("http://proxy", "http://proxy"), ("", "")):
        chosen = Settings.from_strings({**given, "advertised.http": advertised_http})
        assert chosen.resolve_advertised_http(8443) == origin
    with pytest.raises(Refused, match="the listener http needs a key"):
        Settings.from_strings({"http": "https://127.0.0.1:8443"})
