"""Settings of topics and brokers as the metadata log has them, in their normal form.

Earlier releases logged the text as it was typed. So an image is built with the normal form of whatever the log has, and
each broker shows and compares the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache

from tiered.config.listener_overrides import is_dynamic, override_row
from tiered.config.setting import SettingRow
from tiered.config.settings import broker_rows, topic_rows
from tiered.config.unserved import CHANGEABLE


@cache
def stored_rows() -> dict[str, SettingRow]:
    """Returns the rows of the settings that the metadata may have of a broker: ours, and those of Kafka without effect
    here."""
    return {**CHANGEABLE, **broker_rows()}


def find_row(name: str, table: Mapping[str, SettingRow]) -> SettingRow | None:
    """Returns the row of a setting, also of a single listener; None for an unknown name."""
    return override_row(name, table) if is_dynamic(name) else table.get(name)


def normalize_topic_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """Returns logged settings of a topic in their normal form."""
    return {name: _of_topic(name, text) for name, text in configs.items()}


def normalize_broker_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """Returns logged settings of a broker, or of all brokers, in their normal form."""
    return {name: _of_broker(name, text) for name, text in configs.items()}


@lru_cache(maxsize=4096)
def _of_topic(name: str, text: str) -> str:
    return _normalize(find_row(name, topic_rows()), text)


@lru_cache(maxsize=1024)
def _of_broker(name: str, text: str) -> str:
    return _normalize(find_row(name, stored_rows()), text)


def _normalize(row: SettingRow | None, text: str) -> str:
    return text if row is None else row.normalize_stored(text)


def merge_configs(old: Mapping[str, str], new: Mapping[str, str | None]) -> dict[str, str]:
    """Returns settings after a change of some; None removes a setting."""
    kept = {key: value for key, value in old.items() if key not in new}
    return kept | {key: value for key, value in new.items() if value is not None}
