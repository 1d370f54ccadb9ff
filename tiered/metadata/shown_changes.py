"""Metadata changes as people may see them: without secrets and incarnations, and never long.

Pure. Fields of a change that are kept out of its `repr` are secrets. Settings are hidden if their name says that they
hold one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tiered.config.settings import broker_rows
from tiered.metadata import changes as kinds
from tiered.metadata.changes import Change
from tiered.metadata.image import Image
from tiered.security.secret import HIDDEN

SECRET_WORDS = ("password", "secret", "jaas", "keystore.key", "credential")
"""Parts of the names of settings whose values are secret. Settings that only Kafka has are among them."""
LEFT_OUT = ("incarnation", "directory")
"""Brokers prove themselves and their data directories to each other by these."""
ITEMS_MAX = 20
TEXT_MAX = 200


def show_change(change: Change, image: Image) -> dict[str, Any]:
    """Returns the fields of a change as JSON, its kind first. Lists have at most 20 items and then how many are left
    out. `image` has the names of topics that exist, and of deleted ones until their last object is gone."""
    shown = kinds.to_json(change)
    for each in fields(change):
        if each.name in LEFT_OUT:
            shown.pop(each.name, None)
        elif not each.repr and each.name in shown:
            shown[each.name] = HIDDEN
    if isinstance(shown.get("configs"), Mapping):
        shown["configs"] = {name: _show_setting(name, value) for name, value in shown["configs"].items()}
    topic_id = shown.get("topic_id", "")
    topic = image.topics_by_id.get(topic_id) or image.deleted_topics.get(topic_id)
    if topic is not None:
        shown["topic"] = topic.name
    return {name: _shorten(value) for name, value in shown.items()}


def _show_setting(name: str, value: str | None) -> str | None:
    row = broker_rows().get(name)
    is_secret = (row is not None and row.secret) or any(word in name.lower() for word in SECRET_WORDS)
    return HIDDEN if is_secret and value is not None else value


def _shorten(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[: TEXT_MAX - 3]}..."
    if isinstance(value, Mapping):
        kept = {name: _shorten(item) for name, item in list(value.items())[:ITEMS_MAX]}
        return kept if len(value) <= ITEMS_MAX else kept | {"...": f"{len(value) - ITEMS_MAX} more"}
    if isinstance(value, tuple | list):
        items = [_shorten(item) for item in value[:ITEMS_MAX]]
        return items if len(value) <= ITEMS_MAX else [*items, f"{len(value) - ITEMS_MAX} more"]
    return value
