"""Tests of the settings of compacted topics and of the log cleaner with Kafka's own tool: set, shown, removed, and
refused if wrong."""

from __future__ import annotations

import re

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import DriverClient, look_until
from tests.compat.clients import ALL
from tests.peer.kafka import tool

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not ALL, reason="make compat runs it: a JVM for every step"),
]
TOPIC = {
    "cleanup.policy": "compact,delete",
    "delete.retention.ms": "60000",
    "max.compaction.lag.ms": "600000",
    "min.cleanable.dirty.ratio": "0.25",
    "min.compaction.lag.ms": "1000",
}
WRONG_TOPIC = {
    "cleanup.policy=shrink": "cleanup.policy",
    "delete.retention.ms=-1": "delete.retention.ms",
    "max.compaction.lag.ms=0": "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio=1.5": "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms=2000,max.compaction.lag.ms=1000": "min.compaction.lag.ms",
}
"""By change of a topic: the setting that the refusal names."""
CLEANER = {
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "33554432",
    "log.cleaner.io.buffer.load.factor": "0.8",
    "log.cleaner.io.buffer.size": "262144",
    "log.cleaner.io.max.bytes.per.second": "1.0E7",
    "log.cleaner.threads": "2",
}
WRONG_CLEANER = {
    "log.cleaner.dedupe.buffer.size=1024": "log.cleaner.dedupe.buffer.size",
    "log.cleaner.threads=-1": "log.cleaner.threads",
    "log.cleaner.io.buffer.load.factor=many": "log.cleaner.io.buffer.load.factor",
}


class Settings:
    """The settings of one topic, or of all brokers, as Kafka's tool sees them."""

    def __init__(self, broker: CompatBroker, *entity: str) -> None:
        self._arguments = (*broker.reach, *entity)

    def add(self, settings: dict[str, str]) -> str:
        """Sets values; a list of several needs brackets."""
        words = [f"{name}=[{value}]" if "," in value else f"{name}={value}" for name, value in settings.items()]
        return self.add_words(",".join(words))

    def add_words(self, words: str) -> str:
        return tool("configs", *self._arguments, "--alter", "--add-config", words)

    def remove(self, *names: str) -> str:
        return tool("configs", *self._arguments, "--alter", "--delete-config", ",".join(names))

    def describe(self) -> dict[str, str]:
        """Returns the settings that are set there."""
        lines = [line.split() for line in tool("configs", *self._arguments, "--describe").splitlines()]
        return dict(words[0].split("=", 1) for words in lines if words and "sensitive=false" in words)

    def refuse(self, words: str, setting: str) -> None:
        """Fails unless a change is refused, with the name of a setting."""
        with pytest.raises(RuntimeError, match=r"InvalidConfigurationException|InvalidRequestException") as refused:
            self.add_words(words)
        said = str(refused.value).partition(" ended with ")[2].lower()
        assert re.search(setting, said), said  # its dots match the spaces of a sentence, too


def test_configs_tool_changes_how_a_topic_is_compacted(broker: CompatBroker, admin: DriverClient, name: str) -> None:
    admin.ask("create", topic=name)
    topic = Settings(broker, "--entity-type", "topics", "--entity-name", name)
    topic.add(TOPIC)
    assert look_until(broker.name, topic.describe, lambda found: len(found) == len(TOPIC)) == TOPIC
    for words, setting in WRONG_TOPIC.items():
        topic.refuse(words, setting)
    topic.remove("delete.retention.ms", "max.compaction.lag.ms")
    left = {key: value for key, value in TOPIC.items() if key not in ("delete.retention.ms", "max.compaction.lag.ms")}
    assert look_until(broker.name, topic.describe, lambda found: len(found) == len(left)) == left


def test_configs_tool_changes_the_log_cleaner_of_all_running_brokers(broker: CompatBroker) -> None:
    brokers = Settings(broker, "--entity-type", "brokers", "--entity-default")

    def describe() -> dict[str, str]:  # Kafka 4.2 sets min.insync.replicas there by itself
        return {name: value for name, value in brokers.describe().items() if name.startswith("log.cleaner.")}

    brokers.add(CLEANER)
    try:
        assert look_until(broker.name, describe, lambda found: len(found) == len(CLEANER)) == CLEANER
        for words, setting in WRONG_CLEANER.items():
            brokers.refuse(words, setting)
    finally:
        brokers.remove(*CLEANER)
    assert look_until(broker.name, describe, lambda found: not found) == {}
