"""Tests of the rules between settings, and of the form of list values."""

from __future__ import annotations

import pytest

from tiered.config.settings import Settings, TopicConfig
from tiered.errors import Code, Refused


@pytest.mark.parametrize("name", ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"])
def test_throttled_replicas_are_pairs_of_numbers_or_all(name: str) -> None:
    for good in ("", "*", "0:1", "0:1, 11:22"):
        TopicConfig.from_strings({name: good})
    for bad in ("0", "0:1,*", "a:1", "0:-1", "0:1:2", "all"):
        with pytest.raises(Refused) as refused:
            TopicConfig.from_strings({name: bad})
        assert refused.value.code is Code.INVALID_CONFIG
        assert refused.value.why.startswith(f"{name}={bad}") and "PARTITION:BROKER" in refused.value.why


@pytest.mark.parametrize(
    ("heartbeat", "session"), [("3000", "6000"), ("1500", "3000"), ("9000", "6000"), ("1500", "500")]
)
def test_broker_must_send_more_than_two_heartbeats_a_session(heartbeat: str, session: str) -> None:
    given = {"broker.heartbeat.interval.ms": heartbeat, "broker.session.timeout.ms": session}
    with pytest.raises(Refused) as refused:
        Settings.from_strings(given)
    assert refused.value.code is Code.INVALID_CONFIG
    assert f"less than half of broker.session.timeout.ms={session}" in refused.value.why
    Settings.from_strings(given | {"broker.heartbeat.interval.ms": str(int(session) // 2 - 1)})


def test_inter_broker_listener_must_exist() -> None:
    given = {"listeners": "PLAINTEXT://:9092,Inner://:9094", "inter.broker.listener.name": "inner"}
    assert Settings.from_strings(given).inter_broker_listener_name == "INNER"
    for wrong in (given | {"inter.broker.listener.name": "OUTER"}, {"inter.broker.listener.name": "INNER"}):
        with pytest.raises(Refused, match=r"no listener has that name; there are: PLAINTEXT") as refused:
            Settings.from_strings(wrong)
        assert refused.value.code is Code.INVALID_CONFIG


def test_allowed_hosts_of_http_are_names_without_scheme_and_port() -> None:
    for good in ("", "*", "kafka.example.org, broker-1"):
        Settings.from_strings({"tiered.http.allowed.hosts": good})
    for bad in ("http://kafka.example.org", "kafka.example.org:8082", "*.example.org", "a/b"):
        with pytest.raises(Refused, match="a host name without scheme and port") as refused:
            Settings.from_strings({"tiered.http.allowed.hosts": bad})
        assert refused.value.code is Code.INVALID_CONFIG


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("session.timeout.ms", "6000", "at least group.consumer.min.session.timeout.ms=45000"),
        ("session.timeout.ms", "90000", "at most group.consumer.max.session.timeout.ms=60000"),
        ("heartbeat.interval.ms", "500", "at least group.consumer.min.heartbeat.interval.ms=5000"),
        ("heartbeat.interval.ms", "16000", "at most group.consumer.max.heartbeat.interval.ms=15000"),
    ],
)
def test_timeouts_of_consumer_groups_are_within_their_bounds(name: str, value: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        Settings.from_strings({f"group.consumer.{name}": value})
    assert refused.value.why.startswith(f"group.consumer.{name}={value}")


def test_traces_go_to_a_url_of_http() -> None:
    name = "tiered.trace.otlp.endpoint"
    for good in ("", "http://127.0.0.1:4318/v1/traces", "https://collector.example.org/v1/traces"):
        assert Settings.from_strings({name: good}).tiered_trace_otlp_endpoint == good
    for bad in ("collector:4318", "http://", "grpc://collector:4317", "http://[::1/v1/traces", "http://collector:x"):
        with pytest.raises(Refused, match="a URL such as http://collector") as refused:
            Settings.from_strings({name: bad})
        assert refused.value.code is Code.INVALID_CONFIG
