"""Names under which a broker is served over HTTP."""

from __future__ import annotations

import pytest

from tiered.config.settings import Settings
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.server.allowed_hosts import HOST_CACHE_MAX, AllowedHosts

HTTP_1_1 = (1, 1)


def allowed(host: str, **settings: str) -> bool:
    made = Settings.from_strings({name.replace("_", "."): text for name, text in settings.items()})
    try:
        AllowedHosts(made, "machine").check({"Host": host}, HTTP_1_1)
    except HttpError as error:
        assert error.status in (400, 403)
        return False
    return True


@pytest.mark.parametrize("host", ["machine", "MACHINE:8082", "localhost", "1.2.3.4", "[2001:db8::1]:80", "[::1]"])
def test_broker_is_served_under_addresses_and_the_name_of_its_machine(host: str) -> None:
    assert allowed(host)
    assert allowed(host, http="[::1]:0", kafka="[::]:0")


@pytest.mark.parametrize(
    "host", ["example.org", "machine.example.org", "1.2.3.4.example.org", "[x]", "1.2.3", "0x7f.1"]
)
def test_broker_is_served_under_no_other_name(host: str) -> None:
    assert not allowed(host)
    assert not allowed(host, http="[::1]:0", kafka="[::]:0")
    assert not allowed(":80")


def test_broker_is_served_under_the_names_that_its_listeners_have() -> None:
    assert allowed("here.example.org", http="here.example.org:8082")
    assert allowed("here.example.org:1", kafka="here.example.org:9092")
    assert allowed("here.example.org", advertised_http="https://here.example.org")
    listeners = "PLAINTEXT://:9092,INNER://inner.example.org:9094"
    assert allowed("inner.example.org", listeners=listeners)
    assert allowed("here.example.org", listeners=listeners, advertised_listeners="PLAINTEXT://Here.example.org:9092")


def test_cached_hosts_are_bounded() -> None:
    hosts = AllowedHosts(Settings(), "machine")
    for port in range(3 * HOST_CACHE_MAX):
        hosts.check({"Host": f"localhost:{port}"}, HTTP_1_1)
        assert len(hosts._accepted) <= HOST_CACHE_MAX
    with pytest.raises(HttpError):
        hosts.check({"Host": "example.org"}, HTTP_1_1)


def test_host_is_missing_only_before_http_1_1() -> None:
    hosts = AllowedHosts(Settings(), "machine")
    hosts.check({}, (1, 0))
    with pytest.raises(HttpError) as refused:
        hosts.check({}, HTTP_1_1)
    assert refused.value.status == 400
