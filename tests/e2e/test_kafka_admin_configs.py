"""Tests of DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources over real sockets."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.kafka_site import KafkaBroker, RawClient, run
from tests.scenario import run_by
from tiered.config.settings import broker_rows, listed_topic_rows
from tiered.errors import Code
from tiered.metadata.config_sources import ConfigSource
from tiered_api.kafka.protocol.messages import alter_configs, incremental_alter_configs
from tiered_api.kafka.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from tiered_api.kafka.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tiered_api.kafka.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tiered_api.kafka.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tiered_api.kafka.server.requests.config_resources import ConfigResourceType

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, GROUP = ConfigResourceType.TOPIC, ConfigResourceType.BROKER, ConfigResourceType.GROUP
DEFAULT, STATIC, ALL_BROKERS = (
    ConfigSource.DEFAULT_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
)


async def describe_configs(
    client: RawClient, kind: int, name: str, *keys: str, version: int = 4
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(kind, name, list(keys) or None)
    request = DescribeConfigsRequest([resource], include_synonyms=True, include_documentation=True)
    (result,) = (await client.ask(request, version, DescribeConfigsResponse)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def describe_one(client: RawClient, kind: int, name: str, key: str) -> DescribeConfigsResourceResult:
    (found,) = (await describe_configs(client, kind, name, key)).configs
    return found


def synonyms_of(shown: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    """Returns the synonyms, the strongest first."""
    return [(each.name, each.value, each.source) for each in shown.synonyms]


async def change_configs(
    client: RawClient, kind: int, name: str, *edits: tuple[str, int, str | None], only: bool = False
) -> tuple[int, str | None]:
    """Sends IncrementalAlterConfigs for one resource; returns its code and its text."""
    configs = [incremental_alter_configs.AlterableConfig(*edit) for edit in edits]
    resource = incremental_alter_configs.AlterConfigsResource(kind, name, configs)
    request = IncrementalAlterConfigsRequest([resource], only)
    (result,) = (await client.ask(request, 1, IncrementalAlterConfigsResponse)).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, result.error_message


@run_by(run, "tmp_path")
async def test_every_setting_is_shown_with_its_source(site: KafkaBroker) -> None:
    await site.create("t", segment_bytes="2097152")
    client = await site.client()
    for version in range(1, 5):
        result = await describe_configs(client, TOPIC, "t", version=version)
        assert (result.error_code, {each.name for each in result.configs}) == (0, set(listed_topic_rows()))
        assert all(not each.read_only and not each.is_sensitive for each in result.configs)
        assert all(bool(each.documentation) == (version >= 3) for each in result.configs)
        types = {each.name: each.config_type for each in result.configs}
        names = ("preallocate", "compression.type", "segment.bytes", "retention.ms", "cleanup.policy",
                 "min.cleanable.dirty.ratio")  # fmt: skip
        assert [types[name] for name in names] == ([1, 2, 3, 5, 7, 6] if version >= 3 else [0] * 6)
    shown = await describe_one(client, TOPIC, "t", "segment.bytes")
    assert (shown.value, shown.config_source) == ("2097152", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert synonyms_of(shown) == [("segment.bytes", "2097152", 1), ("log.segment.bytes", "1073741824", DEFAULT)]
    whole = DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "t", None)])
    (plain,) = (await client.ask(whole, 4, DescribeConfigsResponse)).results
    assert not any(each.synonyms or each.documentation for each in plain.configs)


@run_by(run, "tmp_path", num_partitions=7)
async def test_broker_shows_its_settings_under_kafkas_names(site: KafkaBroker, *, tmp_path: Path) -> None:
    client = await site.client()
    result = await describe_configs(client, BROKER, "1")
    shown = {each.name: each for each in result.configs}
    assert set(broker_rows()) | {"broker.id", "log.dirs", "log.dir"} == shown.keys()
    assert {"num.partitions", "default.replication.factor", "auto.create.topics.enable"} <= shown.keys()
    passwords = {name for name, each in shown.items() if each.config_type == 9}
    assert passwords == {name for name, row in broker_rows().items() if row.secret} != set()
    assert shown["log.dirs"].value == str(tmp_path) and shown["broker.id"].value == "1"
    partitions = shown["num.partitions"]
    assert (partitions.value, partitions.config_source, partitions.read_only) == ("7", STATIC, True)
    assert not shown["log.retention.ms"].read_only and not shown["max.connections"].read_only
    assert (await describe_configs(client, BROKER, "")).configs == []
    wanted = [
        (BROKER, "9", 42),
        (BROKER, "x", 42),
        (99, "1", 42),
        (TOPIC, "no", 3),
        (TOPIC, "b/d", 17),
        (TOPIC, "", 17),
    ]
    for kind, name, code in wanted:
        missing = await describe_configs(client, kind, name)
        assert (missing.error_code, missing.configs) == (code, []) and missing.error_message


@run_by(run, "tmp_path")
async def test_settings_of_kafka_without_effect_end_as_there(site: KafkaBroker) -> None:
    """Kafka changes some while it runs, reads others at start only, and takes the reset of any."""
    name = "sasl.kerberos.min.time.before.relogin"
    client = await site.client()

    async def change(node: str, *edits: tuple[str, int, str | None], only: bool = False) -> tuple[int, str]:
        code, why = await change_configs(client, BROKER, node, *edits, only=only)
        return code, why or ""

    assert await change("1", (name, SET, "58000"), only=True) == (0, "")
    assert (await describe_configs(client, BROKER, "1", name)).configs == []
    assert await change("1", (name, SET, "58000"), ("num.io.threads", SET, "4")) == (0, "")
    shown = await describe_one(client, BROKER, "1", name)
    assert (shown.value, shown.read_only, shown.is_sensitive) == ("58000", False, False)
    own = ConfigSource.DYNAMIC_BROKER_CONFIG
    assert synonyms_of(shown) == [(name, "58000", own), (name, "60000", DEFAULT)]
    assert await change("", ("num.io.threads", SET, "5")) == (0, "")
    assert synonyms_of(await describe_one(client, BROKER, "1", "num.io.threads")) == [
        ("num.io.threads", "4", own), ("num.io.threads", "5", ALL_BROKERS), ("num.io.threads", "8", DEFAULT),
    ]  # fmt: skip
    invalid = Code.INVALID_REQUEST.number
    refused = [
        (await change(node, (key, SET, value)), word)
        for node, key, value, word in (
            ("", name, "58000", "one broker only"),
            ("1", name, "abc", "must be an integer"),
            ("1", "num.io.threads", "0", "from 1"),
            ("1", "replica.socket.timeout.ms", "1", "at start only"),
            ("1", "create.topic.policy.class.name", "a.B", "at start only"),
            ("1", "principal.builder.class", "a.B", "DefaultKafkaPrincipalBuilder"),
            ("1", "ssl.protocol", "TLSv1.2", "TLSv1.3"),
            ("1", "sasl.jaas.config", "secret", "for one listener"),
            ("1", "no.such.name", "1", "unknown broker setting"),
        )
    ]
    assert all(code == invalid and word in why for (code, why), word in refused), refused
    for key in (name, "replica.socket.timeout.ms", "sasl.jaas.config"):
        assert await change("1", (key, DELETE, None)) == (0, "")
    assert (await describe_configs(client, BROKER, "1", name)).configs == []
    assert site.broker.settings.to_strings() == site.broker.startup_settings.to_strings()


@run_by(run, "tmp_path")
async def test_list_cannot_grow_beyond_the_limit_of_a_value(site: KafkaBroker) -> None:
    """The metadata log keeps every value."""
    await site.create("t")
    client, name = await site.client(), "leader.replication.throttled.replicas"
    first, second = (",".join(f"{n}:1" for n in range(start, start + 3_000)) for start in (1_000, 4_000))
    assert await change_configs(client, TOPIC, "t", (name, APPEND, first)) == (0, None)
    code, why = await change_configs(client, TOPIC, "t", (name, APPEND, second))
    assert code == Code.INVALID_CONFIG.number and "at most 32767 bytes" in (why or "")
    assert (await describe_one(client, TOPIC, "t", name)).value == first


@run_by(run, "tmp_path")
async def test_repeated_resource_is_described_once(site: KafkaBroker) -> None:
    """Otherwise a small request could get a reply of any size."""
    await site.create("t", retention_ms="5")
    await site.create("u")
    client = await site.client()
    resources = [DescribeConfigsResource(TOPIC, name, None) for name in ("t", "u", "t")]
    answer = await client.ask(DescribeConfigsRequest(resources), 4, DescribeConfigsResponse)
    assert [each.error_code for each in answer.results] == [0, 0, Code.INVALID_REQUEST.number]
    values = [{each.name: each.value for each in result.configs} for result in answer.results]
    assert [each.get("retention.ms") for each in values] == ["5", "604800000", None]


@run_by(run, "tmp_path")
async def test_settings_of_brokers_are_defaults_of_topics(site: KafkaBroker) -> None:
    await site.create("t")
    client, name = await site.client(), "log.retention.ms"
    assert await change_configs(client, BROKER, "", (name, SET, "86400000")) == (0, None)
    assert await change_configs(client, BROKER, "1", (name, SET, "86400001")) == (0, None)
    defaults = [(name, "86400000", ALL_BROKERS), (name, "604800000", DEFAULT)]
    assert synonyms_of(await describe_one(client, BROKER, "1", name)) == [(name, "86400001", 2), *defaults]
    assert synonyms_of(await describe_one(client, TOPIC, "t", "retention.ms")) == [(name, "86400001", 2), *defaults]
    assert synonyms_of(await describe_one(client, BROKER, "", name)) == defaults[:1]
    assert site.broker.leader_replica("t", 0).config.retention_ms == 86_400_001
    assert await change_configs(client, BROKER, "1", (name, DELETE, None)) == (0, None)
    assert (await describe_one(client, TOPIC, "t", "retention.ms")).config_source == ALL_BROKERS
    for key, value in (("num.partitions", "3"), ("bogus", "3"), (name, "much")):
        code, why = await change_configs(client, BROKER, "1", (key, SET, value))
        assert code == Code.INVALID_REQUEST.number and key in (why or "")
    assert (await change_configs(client, BROKER, "9", (name, SET, "1")))[0] == Code.INVALID_REQUEST.number


@run_by(run, "tmp_path")
async def test_incremental_change_keeps_other_settings(site: KafkaBroker) -> None:
    replica = await site.create("t", segment_bytes="2097152")
    client, throttled = await site.client(), "leader.replication.throttled.replicas"
    assert await change_configs(client, TOPIC, "t", ("retention.ms", SET, "5"), only=True) == (0, None)
    assert replica.config.retention_ms != 5
    edits = (("retention.ms", SET, "5"), ("segment.bytes", DELETE, None), (throttled, APPEND, "0:1,1:1"))
    assert await change_configs(client, TOPIC, "t", *edits) == (0, None)
    assert site.broker.image.topics["t"].configs == {"retention.ms": "5", throttled: "0:1,1:1"}
    assert (replica.config.retention_ms, replica.config.segment_bytes) == (5, 1 << 30)
    assert await change_configs(client, TOPIC, "t", (throttled, SUBTRACT, "0:1,7:7")) == (0, None)
    assert (await describe_one(client, TOPIC, "t", throttled)).value == "1:1"
    assert await change_configs(client, TOPIC, "t", (throttled, APPEND, "1:1,2:1")) == (0, None)
    assert (await describe_one(client, TOPIC, "t", throttled)).value == "1:1,2:1"
    before = site.broker.image.topics["t"].configs
    refused = [
        (("retention.ms", SET, "much"), Code.INVALID_CONFIG),
        (("retention.ms", SET, None), Code.INVALID_REQUEST),
        (("retention.ms", APPEND, "5"), Code.INVALID_CONFIG),
        (("retention.ms", 7, "5"), Code.INVALID_REQUEST),
        (("bogus", SET, "5"), Code.INVALID_CONFIG),
        (("cleanup.policy", SET, "shred"), Code.INVALID_CONFIG),
        (("cleanup.policy", APPEND, "shred"), Code.INVALID_CONFIG),
    ]
    for edit, expected in refused:
        code, why = await change_configs(client, TOPIC, "t", ("flush.messages", SET, "9"), edit)
        assert code == expected.number and edit[0] in (why or ""), edit
    twice = await change_configs(client, TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    assert twice[0] == Code.INVALID_REQUEST.number
    assert site.broker.image.topics["t"].configs == before, "all of a resource or nothing"


@run_by(run, "tmp_path")
async def test_each_resource_has_its_own_error(site: KafkaBroker) -> None:
    await site.create("t")
    await site.create("u")
    client = await site.client()
    places = [
        (TOPIC, "t"),
        (TOPIC, "no"),
        (TOPIC, "b/d"),
        (TOPIC, ""),
        (99, "t"),
        (8, "1"),
        (TOPIC, "u"),
        (TOPIC, "u"),
    ]
    retention = incremental_alter_configs.AlterableConfig("retention.ms", SET, "5")
    resources = [incremental_alter_configs.AlterConfigsResource(*place, [retention]) for place in places]
    answer = await client.ask(IncrementalAlterConfigsRequest(resources), 1, IncrementalAlterConfigsResponse)
    assert [each.error_code for each in answer.responses] == [0, 3, 17, 42, 42, 42, 42, 42]
    assert [(each.resource_type, each.resource_name) for each in answer.responses] == places
    assert site.broker.image.topics["t"].configs == {"retention.ms": "5"}
    assert site.broker.image.topics["u"].configs == {}


@run_by(run, "tmp_path")
async def test_alter_configs_replaces_all_settings(site: KafkaBroker) -> None:
    await site.create("t", segment_bytes="2097152", retention_ms="5")
    client = await site.client()

    async def replace(kind: int, name: str, only: bool = False, **configs: str | None) -> int:
        given = [alter_configs.AlterableConfig(key.replace("_", "."), value) for key, value in configs.items()]
        request = AlterConfigsRequest([alter_configs.AlterConfigsResource(kind, name, given)], only)
        return (await client.ask(request, 2, AlterConfigsResponse)).responses[0].error_code

    assert await replace(TOPIC, "t", only=True) == 0
    assert len(site.broker.image.topics["t"].configs) == 2
    assert await replace(TOPIC, "t", retention_ms="6") == 0
    assert site.broker.image.topics["t"].configs == {"retention.ms": "6"}
    assert await replace(TOPIC, "t", retention_ms=None) == 42
    assert await replace(TOPIC, "t", bogus="1") == 40
    assert await replace(TOPIC, "no", bogus="1") == await replace(TOPIC, "no", retention_ms="x") == 40
    assert await replace(TOPIC, "no", retention_ms="6") == 3 and await replace(TOPIC, "b/d", bogus="1") == 17
    assert await replace(BROKER, "1", log_retention_ms="7") == 0
    assert await replace(BROKER, "1", log_roll_ms="8") == 0
    assert site.broker.image.broker_configs[1] == {"log.roll.ms": "8"}
    assert await replace(TOPIC, "t") == 0 and site.broker.image.topics["t"].configs == {}


@run_by(run, "tmp_path")
async def test_resources_that_have_settings_are_listed(site: KafkaBroker) -> None:
    await site.create("t")
    client = await site.client()

    async def list_resources(version: int, *kinds: int) -> list[tuple[int, str]]:
        answer = await client.ask(ListConfigResourcesRequest(list(kinds)), version, ListConfigResourcesResponse)
        assert answer.error_code == (35 if 99 in kinds else 0)
        return [(each.resource_type, each.resource_name) for each in answer.config_resources]

    assert await list_resources(1) == [(8, "1"), (4, "1"), (2, "t")]
    assert await list_resources(1, TOPIC, TOPIC) == [(2, "t")]
    assert await list_resources(1, 16, 32) == await list_resources(1, 99) == await list_resources(0) == []


@run_by(run, "tmp_path")
async def test_settings_of_a_group_are_shown_set_and_listed(site: KafkaBroker) -> None:
    client, session = await site.client(), "consumer.session.timeout.ms"
    result = await describe_configs(client, GROUP, "g")
    assert (result.error_code, [(each.name, each.value, each.config_source) for each in result.configs]) == (
        0, [("consumer.heartbeat.interval.ms", "5000", DEFAULT), (session, "45000", DEFAULT)]
    )  # fmt: skip
    assert [synonyms_of(each) for each in result.configs][1] == [(session, "45000", DEFAULT)]
    code, why = await change_configs(client, GROUP, "g", (session, SET, "70000"))
    assert code == Code.INVALID_CONFIG.number and "group.consumer.max.session.timeout.ms=60000" in (why or "")
    assert await change_configs(client, GROUP, "g", (session, SET, "50000")) == (0, None)
    shown = await describe_one(client, GROUP, "g", session)
    assert synonyms_of(shown) == [(session, "50000", ConfigSource.DYNAMIC_GROUP_CONFIG)]
    listing = ListConfigResourcesRequest([GROUP])
    listed = (await client.ask(listing, 1, ListConfigResourcesResponse)).config_resources
    assert [(each.resource_type, each.resource_name) for each in listed] == [(GROUP, "g")]
    assert await change_configs(client, GROUP, "g", (session, DELETE, None)) == (0, None)
    assert (await client.ask(listing, 1, ListConfigResourcesResponse)).config_resources == []
    assert (await change_configs(client, GROUP, "", (session, SET, "50000")))[0] == Code.INVALID_REQUEST.number
