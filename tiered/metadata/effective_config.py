"""Settings in force: those that a broker was started with, overridden by the cluster's settings for all brokers and for
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.config.listener_overrides import PREFIX, has_listener
from tiered.config.setting import SettingRow, check_lengths, shorten, unknown_setting
from tiered.config.settings import Settings, TopicConfig, broker_rows, topic_rows
from tiered.config.unserved import CHANGEABLE, ONLY_OF_LISTENERS, is_known_to_kafka
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS, ListEdit
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.stored_configs import find_row, stored_rows
from tiered.metadata.topic_names import INTERNAL
from tiered.security.secret import HIDDEN

MIN_ISR = "min.insync.replicas"
_DEFAULT_MIN_ISR = TopicConfig().min_insync_replicas
FLUSH, CLUSTER_FLUSH = "flush", "log.flush"
FLUSH_BUCKET = "bucket"
"""Value of `flush`: a record is acknowledged once it is in the bucket."""


def cluster_min_isr(image: Image) -> int:
    """Returns `min.insync.replicas` of topics that do not set it: the cluster-wide value in the metadata log, else the
    default.

    Leader and controller both use this value and no other. Otherwise an eligible replica might lack records (KIP-966).
    """
    return int(image.broker_configs.get(ALL_BROKERS, {}).get(MIN_ISR, _DEFAULT_MIN_ISR))


def flushes_to_bucket(image: Image, configs: Mapping[str, str]) -> bool:
    """True if records of a topic with these settings are acknowledged once they are in the bucket, by the metadata log.

    The value that one broker was started with decides nothing here, as for `cluster_min_isr`.
    """
    return configs.get(FLUSH, cluster_flush(image)) == FLUSH_BUCKET


def cluster_flush(image: Image) -> str:
    """Returns `flush` of topics that do not set it, by the metadata log: "" if it does not say."""
    return image.broker_configs.get(ALL_BROKERS, {}).get(CLUSTER_FLUSH, "")


def broker_settings(image: Image, own: Settings, node_id: int) -> Settings:
    """Returns the settings in force on `node_id`. A setting for one broker wins over one for all brokers.

    `cluster_min_isr` wins over the value that the broker was started with, and so does `cluster_flush` over
    `log.flush=bucket`. Raises `Refused` if settings contradict each
    other.
    """
    given = overrides(image, own, node_id)
    return Settings.from_strings(given, defaults=own) if given else own


def overrides(image: Image, own: Settings, node_id: int) -> dict[str, str]:
    """Returns the settings that the image gives `node_id` in place of its `own`."""
    given = {**image.broker_configs.get(ALL_BROKERS, {}), **image.broker_configs.get(node_id, {})}
    if any(name.startswith(PREFIX) for name in given):
        # A listener may have had another name when its setting was stored.
        listeners = {each.name for each in own.effective_listeners()}
        given = {
            name: text for name, text in given.items() if not name.startswith(PREFIX) or has_listener(name, listeners)
        }
    given = {name: text for name, text in given.items() if name not in CHANGEABLE}
    if own.min_insync_replicas != cluster_min_isr(image):
        given[MIN_ISR] = str(cluster_min_isr(image))
    if own.log_flush == FLUSH_BUCKET and CLUSTER_FLUSH not in given:
        given[CLUSTER_FLUSH] = TopicConfig().flush
    return given


def overridden_settings(image: Image, own: Settings, node_id: int) -> dict[str, tuple[object, str]]:
    """Returns the settings that a broker was started with and does not use, because the metadata log overrides them.

    The result maps a name to the value at start and the value in force.
    """
    configs = {**image.broker_configs.get(ALL_BROKERS, {}), **image.broker_configs.get(node_id, {})}
    configs[MIN_ISR] = str(cluster_min_isr(image))
    current, defaults, overridden = broker_settings(image, own, node_id), Settings(), {}
    for name, text in sorted(configs.items()):
        given, default, in_force = (getattr(each, name.replace(".", "_"), None) for each in (own, defaults, current))
        if given not in (default, in_force):
            is_secret = broker_rows()[name].secret
            overridden[name] = (HIDDEN, HIDDEN) if is_secret else (given, text)
    return overridden


def topic_config(topic: TopicImage, defaults: TopicConfig) -> TopicConfig:
    """Returns a topic's settings.

    Raises `Refused` with the topic's name if they contradict the defaults or each other.
    """
    try:
        return parse_topic_config(topic.name, topic.configs, defaults)
    except Refused as refused:
        raise Refused(refused.code, f"topic {topic.name}: {refused.why}") from None


def parse_topic_config(name: str, configs: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
    """Returns the settings of the topic `name`. Raises `Refused` (INVALID_CONFIG) with what is wrong.

    A chain keeps records until segments have them, or a snapshot of a coordinator.
    """
    config = TopicConfig.from_strings(dict(configs), defaults=defaults)
    if config.flush == FLUSH_BUCKET and not config.copies_to_bucket and name not in INTERNAL:
        why = "the topic must have remote.storage.enable=true and remote.log.copy.disable=false"
        raise topic_rows()[FLUSH].refuse(FLUSH_BUCKET, why)
    return config


def apply_edits(
    edits: Mapping[str, str | ListEdit | None],
    current: Mapping[str, str],
    in_force: Mapping[str, str],
    table: Mapping[str, SettingRow],
    *,
    replace: bool,
) -> dict[str, str | None]:
    """Returns what `edits` change, given the `current` own settings and those `in_force`: values to set, None for the
    default. New values have their normal form.

    With `replace`, settings in `current` that `edits` do not name return to the default. Raises `Refused` if words are
    added to a setting that is no list, and what `normalize_edits` raises.
    """
    changed: dict[str, str | None] = dict.fromkeys(current) if replace else {}
    for name, edit in edits.items():
        if isinstance(edit, ListEdit):
            row = table.get(name)
            if row is None:
                raise unknown_setting(name, table, "topic")
            if not isinstance(row.default, tuple):
                raise Refused(
                    Code.INVALID_CONFIG, f"{name}: it is not a list, so words cannot be added or removed: set its value"
                )
            words = [word for word in in_force.get(name, "").split(",") if word and word not in edit.removed]
            changed[name] = ",".join(dict.fromkeys([*words, *edit.added]))
        else:
            changed[name] = edit
    return normalize_edits(changed, table)


def normalize_edits(edits: Mapping[str, str | None], table: Mapping[str, SettingRow]) -> dict[str, str | None]:
    """Returns new values in their normal form, as the metadata log keeps them; None stands for the default.

    Raises `Refused` for a value that is too long, or that its setting does not take. Unknown names stay as they are.
    """
    check_lengths(edits)
    normal = dict(edits)
    for name, text in edits.items():
        row = find_row(name, table)
        if row is not None and text is not None:
            normal[name] = row.normalize(text)
    return normal


def check_dynamic(configs: Mapping[str, str | None]) -> None:
    """Refuses settings that cannot be changed while a broker runs."""
    for key, value in configs.items():
        row = find_row(key, stored_rows())
        if key == ONLY_OF_LISTENERS:
            why = "set it for one listener, listener.name.NAME.MECHANISM.sasl.jaas.config"
            raise Refused(Code.INVALID_CONFIG, f"{key}: it has no effect here: {why}")
        if row is None and is_known_to_kafka(key):
            why = "it is a setting of Kafka that brokers read at start only, and has no effect here"
            raise Refused(Code.INVALID_CONFIG, f"{key}: {why}")
        if row is None:
            raise Refused(Code.INVALID_CONFIG, f"{shorten(key)}: unknown broker setting")
        if not row.dynamic:
            raise row.refuse(value or "", "it is read at start only: set it where the broker is started")
