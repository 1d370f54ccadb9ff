"""Settings in force: the broker's own, under what the cluster has set since (for all brokers, then for one)."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.config.setting import SettingRow, unknown_setting
from tiered.config.settings import Settings, TopicConfig, broker_rows
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS, ListEdit
from tiered.metadata.image import Image, TopicImage

MIN_ISR = "min.insync.replicas"


def cluster_min_isr(image: Image) -> int:
    """Returns `min.insync.replicas` of topics that do not set it: what the metadata log says of all brokers, else the
    default. Leader and controller both go by it and by nothing else, or the eligible replicas are not (KIP-966)."""
    return int(image.broker_configs.get(ALL_BROKERS, {}).get(MIN_ISR, TopicConfig().min_insync_replicas))


def broker_settings(image: Image, own: Settings, node_id: int) -> Settings:
    """What `node_id` goes by; the narrower statement wins, and `cluster_min_isr` over what the broker was started with.
    `Refused` when they contradict each other."""
    given = {**image.broker_configs.get(ALL_BROKERS, {}), **image.broker_configs.get(node_id, {})}
    if own.min_insync_replicas != cluster_min_isr(image):
        given[MIN_ISR] = str(cluster_min_isr(image))
    return Settings.from_strings(given, defaults=own) if given else own


def overridden_settings(image: Image, own: Settings, node_id: int) -> dict[str, tuple[object, str]]:
    """What a broker was started with and does not go by, because the cluster says something else: by name, the given
    value and that in force."""
    said = {**image.broker_configs.get(ALL_BROKERS, {}), **image.broker_configs.get(node_id, {})}
    said[MIN_ISR] = str(cluster_min_isr(image))
    now, stock, found = broker_settings(image, own, node_id), Settings(), {}
    for name, text in sorted(said.items()):
        given, default, in_force = (getattr(each, name.replace(".", "_"), None) for each in (own, stock, now))
        if given not in (default, in_force):
            found[name] = (given, text)
    return found


def topic_config(topic: TopicImage, defaults: TopicConfig) -> TopicConfig:
    """What a topic goes by. `Refused` names the topic when its settings and the defaults contradict each other."""
    try:
        return TopicConfig.from_strings(dict(topic.configs), defaults=defaults)
    except Refused as refused:
        raise Refused(refused.code, f"topic {topic.name}: {refused.why}") from None


def apply_edits(
    edits: Mapping[str, str | ListEdit | None],
    current: Mapping[str, str],
    in_force: Mapping[str, str],
    table: Mapping[str, SettingRow],
    *,
    replace: bool,
) -> dict[str, str | None]:
    """What `edits` come to where `own` is set and `in_force` goes: values that set, None for the default. With
    `replace` whatever of `own` is not named goes back to the default. `Refused` for words that join no list."""
    made: dict[str, str | None] = dict.fromkeys(current) if replace else {}
    for name, edit in edits.items():
        if isinstance(edit, ListEdit):
            row = table.get(name)
            if row is None:
                raise unknown_setting(name, table, "topic")
            if not isinstance(row.default, tuple):
                raise Refused(Code.INVALID_CONFIG, f"{name}: it is no list that words could join or leave")
            words = [word for word in in_force.get(name, "").split(",") if word and word not in edit.removed]
            made[name] = ",".join(dict.fromkeys([*words, *edit.added]))
        else:
            made[name] = edit
    return made


def check_dynamic(configs: Mapping[str, str | None]) -> None:
    """Refuses what cannot be changed while a broker runs."""
    for key, value in configs.items():
        row = broker_rows().get(key)
        if row is None:
            raise Refused(Code.INVALID_CONFIG, f"{key}: unknown broker setting")
        if not row.dynamic:
            raise row.refuse(value or "", "it is read at start only")
