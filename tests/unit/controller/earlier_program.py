"""The strict reader of an earlier program, by the kinds and fields that it knew: `level_0.json`. Anything else was
`Corrupt` for it, and ended its process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiered.metadata.layout import LOG_PREFIX, SNAPSHOT_PREFIX
from tiered.object_store.envelope import unseal

LEVEL_0: dict[str, dict[str, list[str]]] = json.loads((Path(__file__).parent / "level_0.json").read_text())


def unknown_in_message(found: Any) -> list[str]:
    """Returns what the earlier program refuses in a message between brokers."""
    match found:
        case {"kind": str(kind)}:
            own = (
                []
                if kind in ("map", "Code", "Refused")
                else sorted(found.keys() ^ {"kind", *LEVEL_0["messages"][kind]})
            )
            return own + [part for each in found.values() for part in unknown_in_message(each)]
        case list():
            return [part for each in found for part in unknown_in_message(each)]
    return []


def unknown_in_change(body: dict[str, Any]) -> list[str]:
    """Returns the kind of a change, or its fields, that the earlier program refuses."""
    known = LEVEL_0["changes"].get(body["kind"])
    return [body["kind"]] if known is None else sorted(body.keys() - {"kind", *known})


def unknown_in_snapshot(body: dict[str, Any]) -> list[str]:
    """Returns the fields of a snapshot that the earlier program refuses, and those that it lacks."""
    known = LEVEL_0["snapshot"]
    topics = [each for topic in body["topics"] for each in topic.keys() - {*known["topics"]}]
    partitions = [
        each for topic in body["topics"] for one in topic["partitions"] for each in one.keys() - {*known["partitions"]}
    ]
    brokers = [each for broker in body["brokers"] for each in broker.keys() - {*known["brokers"]}]
    losses = ["loss" for *_, found in body["losses"] for each in found if len(each) != len(known["loss"])]
    return sorted([*body.keys() ^ {*known["body"]}, *topics, *partitions, *brokers, *losses])


def unknown_in_object(key: str, data: bytes) -> list[str]:
    """Returns what the earlier program refuses in an object of the metadata."""
    if key.startswith(LOG_PREFIX):
        return [part for change in unseal(data, key)["changes"] for part in unknown_in_change(change)]
    return unknown_in_snapshot(unseal(data, key)) if key.startswith(SNAPSHOT_PREFIX) else []
