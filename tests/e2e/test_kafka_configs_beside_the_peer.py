"""Test of the same settings as text to Kafka 4.2 and to ours: each broker takes the same texts, and shows the same
value for each.

The texts are in `tests/peer/setting_texts.py`. Kafka shows a new topic a moment after its creation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.peer.kafka import Peer
from tests.peer.setting_texts import NO_BREAK_SPACE, OURS, TEXTS, SettingText
from tests.peer.wire import Wire
from tiered.config.portability import check_for_kafka
from tiered.config.settings import listed_topic_rows
from tiered.errors import Code
from tiered.testing import cluster
from tiered_api.kafka.protocol.messages import alter_configs
from tiered_api.kafka.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tiered_api.kafka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tiered_api.kafka.server.handlers.incremental_alter_configs import ConfigOperation

pytestmark = pytest.mark.timeout(400)
BESIDE_KAFKA = (pytest.mark.java, pytest.mark.also("kafka"))

TOPIC, BROKER = 2, 4
SECONDS = 30.0
SHOWN_SECONDS = 5.0
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
POLICY, RATIO, THROTTLED = "cleanup.policy", "min.cleanable.dirty.ratio", "leader.replication.throttled.replicas"


class ConfigEdit(NamedTuple):
    """An edit of a topic that was created with `before`. It is refused if `shown` is None."""

    name: str
    before: str | None
    operation: ConfigOperation
    text: str
    shown: str | None


EDITS = [
    ConfigEdit(POLICY, None, APPEND, "", None),
    ConfigEdit(POLICY, None, APPEND, " ", None),
    ConfigEdit(POLICY, None, APPEND, ",", "delete"),
    ConfigEdit(POLICY, None, APPEND, "compact,", "delete,compact"),
    ConfigEdit(POLICY, None, APPEND, ",compact", None),
    ConfigEdit(POLICY, None, APPEND, " compact ", "delete,compact"),
    ConfigEdit(POLICY, "compact", APPEND, "compact,compact", "compact"),
    ConfigEdit(POLICY, "compact", APPEND, "shred", None),
    ConfigEdit(POLICY, "", APPEND, "", ""),
    ConfigEdit(POLICY, "", APPEND, "compact,compact", "compact"),
    ConfigEdit(POLICY, None, SUBTRACT, "", "delete"),
    ConfigEdit(POLICY, "compact,delete", SUBTRACT, "compact,compact", "delete"),
    ConfigEdit(POLICY, "compact", SUBTRACT, "compact,", ""),
    ConfigEdit(POLICY, "compact", SUBTRACT, "shred", "compact"),
    ConfigEdit(THROTTLED, "0:1", APPEND, "0:1,1:1", "0:1,1:1"),
    ConfigEdit(THROTTLED, "0:1", APPEND, "*", None),
    ConfigEdit("retention.ms", None, APPEND, "5", None),
    ConfigEdit("retention.ms", None, SET, " +5 ", "5"),
    ConfigEdit("retention.ms", None, SET, "1_0", None),
    ConfigEdit("retention.ms", "7", SET, NO_BREAK_SPACE + "5", None),
    ConfigEdit(RATIO, None, SET, " 5e-1 ", "0.5"),
    ConfigEdit("preallocate", None, SET, "TRUE", "true"),
]
OF_BROKERS = {
    "log.cleaner.threads": {"0_1": False, " 1 ": True, "": False},
    "log.cleaner.io.buffer.load.factor": {"0.8f": True, ".8": True, "0_8": False},
    "log.cleanup.policy": {"delete,": False, "delete , delete": True, "": True},
    "log.preallocate": {"TRUE": True, "yes": False},
    "unclean.leader.election.enable": {" False ": True, "0": False},
    "max.connections.per.ip.overrides": {"127.0.0.1:50,": True, "127.0.0.1:5_0": False},
    "log.retention.bytes": {"-2": True, "1_0": False},
    "log.index.size.max.bytes": {"4": True, "3": False},
}
"""By setting of all brokers, and by text: True if both take it."""


@pytest.fixture(scope="module")
def ours() -> Iterator[Wire]:
    """Yields a connection to a broker of ours."""
    with cluster() as broker, Wire(broker.bootstrap_servers) as wire:
        yield wire


@pytest.fixture(scope="module")
def kafka() -> Iterator[Wire]:
    """Yields a connection to Kafka."""
    with Peer() as peer, Wire(peer.address) as wire:
        yield wire


@pytest.fixture(params=[pytest.param("kafka", marks=BESIDE_KAFKA), "ours"])
def wire(request: pytest.FixtureRequest) -> Wire:
    """Returns a connection to each of the brokers: Kafka shows that the texts of this file are right."""
    chosen: Wire = request.getfixturevalue(request.param)
    return chosen


def create(wire: Wire, settings: dict[str, dict[str, str]], *, only_check: bool = False) -> dict[str, int]:
    """Creates topics with their settings. Returns the error codes."""
    topics = [
        CreatableTopic(name, 1, 1, [], [CreatableTopicConfig(*each) for each in configs.items()])
        for name, configs in settings.items()
    ]
    reply = wire.ask(CreateTopicsRequest(topics, int(SECONDS * 1000), only_check), CreateTopicsResponse, 5)
    return {each.name: each.error_code for each in reply.topics}


def alter(wire: Wire, kind: int, name: str, edit: tuple[str, int, str | None]) -> int:
    """Sends one edit. Returns its error code."""
    resource = AlterConfigsResource(kind, name, [AlterableConfig(*edit)])
    reply = wire.ask(IncrementalAlterConfigsRequest([resource]), IncrementalAlterConfigsResponse, 1)
    return reply.responses[0].error_code


def shown_values(wire: Wire, wanted: dict[str, tuple[str, str]]) -> dict[str, str | None]:
    """Returns the value of one setting of each topic, by topic. Waits for a broker that learns of them late: `wanted`
    has name and value of the setting."""
    deadline = time.monotonic() + SHOWN_SECONDS
    while True:
        asked = [DescribeConfigsResource(TOPIC, topic, [name]) for topic, (name, _) in wanted.items()]
        reply = wire.ask(DescribeConfigsRequest(asked), DescribeConfigsResponse, 4)
        found = {each.resource_name: each.configs[0].value if each.configs else None for each in reply.results}
        if found == {topic: value for topic, (_, value) in wanted.items()} or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def check_texts(wire: Wire, texts: list[SettingText], prefix: str) -> None:
    """Checks that a broker takes, refuses and shows texts as the table says."""
    named = {f"{prefix}-{number}": each for number, each in enumerate(texts)}
    codes = create(wire, {topic: {each.name: each.text} for topic, each in named.items()})
    refused = {named[topic]: code for topic, code in codes.items() if code}
    assert refused == {each: Code.INVALID_CONFIG.number for each in texts if each.shown is None}
    taken = {topic: (each.name, each.shown) for topic, each in named.items() if each.shown is not None}
    found = shown_values(wire, taken)
    assert {named[topic]: value for topic, value in found.items()} == {
        named[topic]: value for topic, (_, value) in taken.items()
    }


def test_new_topic_shows_the_values_of_its_texts(wire: Wire) -> None:
    check_texts(wire, TEXTS, "text")


def test_new_topic_of_ours_shows_values_that_kafka_shows_otherwise(ours: Wire) -> None:
    check_texts(ours, OURS, "ours")


@pytest.mark.java
@pytest.mark.also("kafka")
def test_kafka_shows_no_text_as_the_value_that_is_ours_alone(kafka: Wire) -> None:
    named = {f"other-{number}": each for number, each in enumerate(OURS)}
    codes = create(kafka, {topic: {each.name: each.text} for topic, each in named.items()})
    accepted = {topic: (named[topic].name, named[topic].text) for topic, code in codes.items() if not code}
    found = shown_values(kafka, accepted)
    equal = [each for topic, each in named.items() if found.get(topic) == each.shown]
    assert not equal, "these belong into the common table"


@pytest.mark.java
@pytest.mark.also("kafka")
def test_numbers_of_topics_have_kafkas_bounds(kafka: Wire, ours: Wire) -> None:
    texts = [str(each) for each in (-(2**63), -(2**31), -3, -2, -1, 0, 1, 2, 10, 63, 64, 2**31 - 1, 2**31, 2**63 - 1)]
    names = {name for name, row in listed_topic_rows().items() if row.type_name in ("integer", "number")}
    asked = {f"{name}-{text}": {name: text, "remote.storage.enable": "false"} for name in names for text in texts}
    found = create(kafka, asked, only_check=True)
    other = {topic for topic, code in create(ours, asked, only_check=True).items() if code != found[topic]}
    # The other value is above a limit of the broker.
    assert other == {"compression.gzip.level-0", "max.message.bytes-2147483647"}


def test_edit_is_taken_and_shown_as_its_value(wire: Wire) -> None:
    named = {f"edit-{number}": each for number, each in enumerate(EDITS)}
    start = {topic: {} if each.before is None else {each.name: each.before} for topic, each in named.items()}
    assert set(create(wire, start).values()) == {0}
    shown_values(wire, {topic: (each.name, each.before or "") for topic, each in named.items() if each.before})
    codes = {each: alter(wire, TOPIC, topic, (each.name, each.operation, each.text)) for topic, each in named.items()}
    assert {each: code for each, code in codes.items() if code} == {
        each: Code.INVALID_CONFIG.number for each in EDITS if each.shown is None
    }
    wanted = {topic: (each.name, each.shown) for topic, each in named.items() if each.shown is not None}
    assert shown_values(wire, wanted) == {topic: value for topic, (_, value) in wanted.items()}


def test_replaced_settings_are_shown_as_their_values(wire: Wire) -> None:
    create(wire, {"replaced": {}})
    shown_values(wire, {"replaced": ("retention.ms", "604800000")})
    for text, code in (("1_0", Code.INVALID_CONFIG.number), (" +6 ", 0)):
        configs = [alter_configs.AlterableConfig("retention.ms", text)]
        request = alter_configs.AlterConfigsRequest([alter_configs.AlterConfigsResource(TOPIC, "replaced", configs)])
        assert wire.ask(request, alter_configs.AlterConfigsResponse, 2).responses[0].error_code == code
    assert shown_values(wire, {"replaced": ("retention.ms", "6")}) == {"replaced": "6"}


def test_setting_of_all_brokers_is_taken_or_refused_alike(wire: Wire) -> None:
    found: dict[str, dict[str, bool]] = {}
    for name, texts in OF_BROKERS.items():
        for text in texts:
            code = alter(wire, BROKER, "", (name, SET, text))
            assert code in (0, Code.INVALID_REQUEST.number)
            found.setdefault(name, {})[text] = not code
            alter(wire, BROKER, "", (name, DELETE, None))
    assert found == OF_BROKERS


def test_unknown_setting_of_a_topic_is_refused(wire: Wire) -> None:
    refused = Code.INVALID_CONFIG.number
    assert create(wire, {"unknown": {"foo.bar": "1"}, "known": {}}) == {"unknown": refused, "known": 0}
    shown_values(wire, {"known": ("retention.ms", "604800000")})
    assert alter(wire, TOPIC, "known", ("foo.bar", SET, "1")) == refused
    assert alter(wire, TOPIC, "known", ("foo.bar", DELETE, None)) == 0


@pytest.mark.java
@pytest.mark.also("kafka")
def test_settings_that_kafka_refuses_are_known(kafka: Wire, ours: Wire) -> None:
    """MirrorMaker would copy a topic to Kafka without any of its settings, and say so once."""
    topics: dict[str, dict[str, str]] = {
        "flush": {"flush": "none"},
        "level": {"compression.gzip.level": "0"},
        "tiered": {"remote.storage.enable": "true"},
        "compacted": {"remote.storage.enable": "true", POLICY: "compact"},
        "off": {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
        "local": {"local.retention.ms": "1000", "local.retention.bytes": "1000", "segment.bytes": "1048576"},
        "no-copies": {"remote.log.copy.disable": "true", "preallocate": "true", "segment.index.bytes": "4"},
    }
    codes = create(kafka, {f"back-{name}": configs for name, configs in topics.items()})
    known = {name: bool([*check_for_kafka(configs)]) for name, configs in topics.items()}
    assert {name.removeprefix("back-"): bool(code) for name, code in codes.items()} == known
    assert set(create(ours, {f"back-{name}": configs for name, configs in topics.items()}).values()) == {0}


def test_records_are_deleted_unless_the_policy_is_compact_alone(wire: Wire) -> None:
    codes = {"": 0, "delete": 0, "compact,delete": 0, "compact": Code.POLICY_VIOLATION.number}
    names = {f"trim-{number}": policy for number, policy in enumerate(codes)}
    create(wire, {topic: {POLICY: policy} for topic, policy in names.items()})
    deadline, found = time.monotonic() + SECONDS, dict[str, int]()
    while found != codes and time.monotonic() < deadline:
        topics = [DeleteRecordsTopic(topic, [DeleteRecordsPartition(0, 0)]) for topic in names]
        reply = wire.ask(DeleteRecordsRequest(topics, 5000), DeleteRecordsResponse, 2)
        found = {names[each.name]: each.partitions[0].error_code for each in reply.topics}
    assert found == codes
