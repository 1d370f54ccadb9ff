"""Settings of topics on their way between Kafka and here: those that the other side refuses, or carries out otherwise.

MirrorMaker copies the settings of a topic, and loses all of them if its target refuses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tiered.config.settings import Settings, TopicConfig, topic_rows, unknown_topic_setting
from tiered.config.topic_limits import check_topic_limits
from tiered.errors import Refused

OWN_SETTINGS = ("flush",)
"""Settings of topics that Kafka does not have."""
REFUSED, NO_EFFECT, OTHER_EFFECT = "refused", "none", "other"


class SettingNote(NamedTuple):
    """A setting that the other side refuses, or keeps with no effect or with another one, and the reason."""

    name: str
    value: str
    effect: str
    why: str


def check_for_here(configs: Mapping[str, str]) -> Iterator[SettingNote]:
    """Yields notes on the settings of a topic of Kafka that is to be copied to here."""
    accepted: dict[str, str] = {}
    for name, text in configs.items():
        row = topic_rows().get(name)
        try:
            if row is None:
                raise unknown_topic_setting(name)
            accepted[name] = row.normalize(text)
        except Refused as refused:
            yield SettingNote(name, text, REFUSED, refused.why)
            continue
        if accepted[name] in row.without_effect:
            yield SettingNote(name, text, NO_EFFECT, row.without_effect[accepted[name]])
    if accepted.get("remote.log.copy.disable") == "true" and "remote.storage.enable" not in accepted:
        why = "a new topic is tiered here, and this setting ends its copies to the bucket"
        yield SettingNote("remote.log.copy.disable", "true", OTHER_EFFECT, why)
    for name in accepted:
        try:
            check_topic_limits({name: accepted[name]}, Settings())
        except Refused as refused:
            yield SettingNote(name, accepted[name], REFUSED, refused.why)
    try:
        TopicConfig.from_strings(accepted)
    except Refused as refused:
        name = refused.why.partition("=")[0]
        yield SettingNote(name, accepted.get(name, ""), REFUSED, refused.why)


def check_for_kafka(configs: Mapping[str, str]) -> Iterator[SettingNote]:
    """Yields notes on the settings of a topic of ours that is to be copied to Kafka 4.2."""
    for name, text in configs.items():
        why = "Kafka has no such setting" if name in OWN_SETTINGS else _REFUSED_BY_KAFKA.get(name, _taken)(configs)
        if why:
            yield SettingNote(name, text, REFUSED, why)


def _taken(_: Mapping[str, str]) -> str:
    return ""


def _judge_tiering(configs: Mapping[str, str]) -> str:
    if configs["remote.storage.enable"] != "true":
        return ""
    if "compact" in configs.get("cleanup.policy", ""):
        return "Kafka tiers no compacted topic"
    return "only a Kafka cluster with tiered storage takes it"


_REFUSED_BY_KAFKA: Mapping[str, Callable[[Mapping[str, str]], str]] = {
    "compression.gzip.level": lambda configs: (
        "it must be -1 or from 1 to 9" if configs["compression.gzip.level"] == "0" else ""
    ),
    "remote.storage.enable": _judge_tiering,
}
"""By setting: the reason for which Kafka refuses the values of a topic, or ""."""
