"""Tests of the APIs for client quotas (KIP-546) over real sockets."""

from __future__ import annotations

import pytest

from tests.e2e.kafka_site import KafkaBroker, run
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.errors import Code
from tiered_api.kafka.protocol.messages import alter_client_quotas as altering
from tiered_api.kafka.protocol.messages import describe_client_quotas as describing

APP = [altering.EntityData("user", "alice"), altering.EntityData("client-id", None)]


def request(entity: list[altering.EntityData], *ops: altering.OpData) -> altering.AlterClientQuotasRequest:
    """Returns the request that changes the quotas of one entity."""
    return altering.AlterClientQuotasRequest([altering.EntryData(entity, list(ops))])


@pytest.mark.parametrize("version", [0, 1])
@run_by(run, "tmp_path")
async def test_quotas_are_set_described_and_removed(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()

    async def alter(entity: list[altering.EntityData], *ops: altering.OpData) -> tuple[int, str | None]:
        asked = request(entity, *ops)
        answer = await client.ask(asked, version, altering.AlterClientQuotasResponse)
        (entry,) = answer.entries
        assert entry.entity == entity
        return entry.error_code, entry.error_message

    async def describe(*components: describing.ComponentData) -> describing.DescribeClientQuotasResponse:
        asked = describing.DescribeClientQuotasRequest(list(components))
        return await client.ask(asked, version, describing.DescribeClientQuotasResponse)

    limits = altering.OpData("producer_byte_rate", 1024.0), altering.OpData("request_percentage", 0.5)
    assert await alter(APP, *limits) == (0, None)
    assert await alter([altering.EntityData("ip", "::1")], altering.OpData("connection_creation_rate", 2.0)) == (
        0,
        None,
    )
    assert await alter(APP, altering.OpData("producer_byte_rate", -1.0)) == (
        Code.INVALID_REQUEST.number,
        "Quota producer_byte_rate must be greater than 0",
    )
    for endless in (float("nan"), float("inf")):
        assert await alter(APP, altering.OpData("request_percentage", endless)) == (
            Code.INVALID_REQUEST.number,
            "Quota request_percentage must be finite",
        )
    described = await describe(describing.ComponentData("user", 0, "alice"))
    assert described.entries is not None and (described.error_code, len(described.entries)) == (0, 1)
    assert [(each.entity_type, each.entity_name) for each in described.entries[0].entity] == [
        ("client-id", None),
        ("user", "alice"),
    ]
    assert [(each.key, each.value) for each in described.entries[0].values] == [
        ("producer_byte_rate", 1024.0),
        ("request_percentage", 0.5),
    ]
    bad = await describe(describing.ComponentData("user", 9))
    assert (bad.error_code, bad.error_message, bad.entries) == (
        Code.INVALID_REQUEST.number,
        "Unknown match type 9",
        None,
    )
    assert await alter(APP, *(altering.OpData(each.key, 0.0, True) for each in limits)) == (0, None)
    left = await describe()
    assert left.entries is not None and [each.entity[0].entity_type for each in left.entries] == ["ip"]


@run_by(run, "tmp_path")
async def test_value_without_end_is_refused_for_its_entity_alone(site: KafkaBroker) -> None:
    """A removal has no value: whatever stands there counts for nothing."""
    client = await site.client()
    key, endless = "producer_byte_rate", float("inf")
    bob = [altering.EntityData("user", "bob")]
    asked = altering.AlterClientQuotasRequest(
        [
            altering.EntryData(bob, [altering.OpData(key, 1024.0)]),
            altering.EntryData(APP, [altering.OpData(key, endless)]),
        ]
    )
    answer = await client.ask(asked, 1, altering.AlterClientQuotasResponse)
    assert [each.error_code for each in answer.entries] == [0, Code.INVALID_REQUEST.number]
    assert site.broker.image.quotas == {(("user", "bob"),): {key: 1024.0}}
    answer = await client.ask(
        request(bob, altering.OpData(key, float("nan"), True)), 1, altering.AlterClientQuotasResponse
    )
    assert ([each.error_code for each in answer.entries], site.broker.image.quotas) == ([0], {})


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_quotas_need_rights_on_the_settings_of_the_cluster(site: KafkaBroker) -> None:
    client = await site.client()
    asked = request(APP, altering.OpData("producer_byte_rate", 1024.0))
    altered = await client.ask(asked, 1, altering.AlterClientQuotasResponse)
    described = await client.ask(describing.DescribeClientQuotasRequest([]), 1, describing.DescribeClientQuotasResponse)
    refused = Code.CLUSTER_AUTHORIZATION_FAILED.number
    assert ([each.error_code for each in altered.entries], described.error_code) == ([refused], refused)
    assert not site.broker.image.quotas
