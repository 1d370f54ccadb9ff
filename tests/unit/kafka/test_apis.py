"""Tests of the table of APIs: ApiVersions and the look-up of requests agree with each other and with Kafka 4.2."""

from __future__ import annotations

import pytest

from tests.sources import ROOT
from tiered_api.kafka.protocol import apis

KAFKA_4_2 = (
    "0:0-13 1:4-18 2:1-11 3:0-13 8:2-10 9:1-10 10:0-6 11:0-9 12:0-4 13:0-5 14:0-5 15:0-6 16:0-5 17:0-1 18:0-4"
    " 19:2-7 20:1-6 21:0-2 22:0-5 23:2-4 24:0-5 25:0-4 26:0-5 27:1-2 28:0-5 29:1-3 30:1-3 31:1-3 32:1-4 33:0-2"
    " 35:1-4 36:0-2 37:0-3 38:1-3 39:1-2 40:1-2 41:1-3 42:0-2 43:0-2 44:0-1 45:0-1"
    " 46:0-0 47:0-0 48:0-1 49:0-1 50:0-0 51:0-0 55:0-2 57:0-2 60:0-2 61:0-0 64:0-0 65:0-0 66:0-2"
    " 68:0-1 69:0-1 74:0-1 75:0-0 83:0-0 84:0-0 85:0-1 86:0-0 87:0-1"
)
"""Keys and versions that a broker of Kafka 4.2 offers by default, for the keys that we serve."""


def test_offered_versions_are_kafkas() -> None:
    ours = [f"{key}:{low}-{high}" for key, low, high in apis.advertised_versions()]
    assert " ".join(ours) == KAFKA_4_2


@pytest.mark.parametrize("api", apis.ALL_APIS.values(), ids=lambda api: api.name)
def test_request_and_response_tables_belong_to_the_same_api(api: apis.Api) -> None:
    request, response = api.request_type.spec, api.response_type.spec
    assert request.key == response.key == api.key
    assert request.versions == response.versions
    assert request.flexible == response.flexible
    assert api.response_type.__name__ == f"{api.name}Response"
    assert request.versions.high >= api.high
    assert api.served_versions == range(max(api.low, request.versions.low), api.high + 1)
    assert all(api.is_flexible(version) == (version in request.flexible) for version in range(api.high + 1))


def test_apis_among_brokers_are_served_and_not_offered() -> None:
    for key, api in (apis.INTER_BROKER_APIS | apis.OPERATOR_APIS).items():
        assert apis.find_api(key, 0) is api
        assert key not in apis.APIS
        assert key >= 10_000, "Kafka may come to have smaller ones"
    assert not (apis.ALL_APIS.keys() - apis.APIS.keys()) & {key for key, _, _ in apis.advertised_versions()}


def test_api_that_is_not_served_is_not_found() -> None:
    assert apis.find_api(3, 13) is apis.APIS[3]
    assert apis.find_api(3, 14) is None
    assert apis.find_api(3, -1) is None
    assert apis.find_api(2, 0) is None
    assert apis.find_api(71, 0) is None


def test_old_produce_versions_are_offered_and_not_served() -> None:
    assert apis.APIS[0].low == 0
    assert [apis.find_api(0, version) is not None for version in range(5)] == [False, False, False, True, True]


def test_version_of_a_newer_kafka_is_not_served() -> None:
    """InitProducerId 6 belongs to transactions in two phases. Kafka 4.2 does not offer it by default either."""
    assert 6 in apis.APIS[22].request_type.spec.versions
    assert apis.find_api(22, 6) is None


def test_each_api_is_sent_by_a_test_over_sockets() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "tests" / "e2e").glob("*.py"))
    unsent = {api.name for api in apis.APIS.values() if f"{api.name}Request" not in text}
    assert unsent == {"AlterPartitionReassignments"}, "operators of the simulator send it, and Kafka's own tool"
