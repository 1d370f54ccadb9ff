"""Names a rule for a field of a typed table (`changes.py`). Loads and replays heed it from its commit on."""

from __future__ import annotations

from contextlib import closing

from pyspark_tiered.bucket import ColdTopicReader, never_loaded
from pyspark_tiered.session import spark_url
from pyspark_tiered.typed import form
from pyspark_tiered.typed.changes import Change, add_change, parse_path
from pyspark_tiered.typed.tables import TypedTable
from tiered.errors import Unavailable

ATTEMPTS = 10
"""Commits of other writers in a row that may come first."""


def change_field(store: str, topic: str, warehouse: str, field: str, to: str) -> Change:
    """Adds a rule to the typed table of a topic: values of `field` that have another type than its column move to the
    field `to` of the same object, or are dropped if `to` is empty.

    Raises `Refused` if there is no such table or field, or if the field has a rule.
    """
    path = parse_path(field)
    with closing(ColdTopicReader(store)) as reader:
        topic_id = reader.topic_id(topic)
    with closing(TypedTable(f"{spark_url(warehouse)}/{topic}{form.TYPED_SUFFIX}", topic, topic_id)) as typed:
        for _ in range(ATTEMPTS):
            typed.snapshot()
            if typed.rules() is None:
                raise never_loaded(topic, typed.url)
            changes = add_change(typed.changes(), typed.schema(), path, to)
            if typed.set_changes(changes):
                return changes[-1]
        raise Unavailable(f"{ATTEMPTS} other commits to {typed.url} came first: try again")
