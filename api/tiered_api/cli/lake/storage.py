"""`tiered topic describe-storage`: the tiers of partitions, with what is loaded into the table of their topic."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from contextlib import closing

from tiered.errors import Code, Refused
from tiered_api.cli.lake.commands import describe_missing_native
from tiered_api.cli.topic import storage


def describe_storage(args: Namespace) -> int:
    """Prints the tiers of topics."""
    return storage.describe_storage(args, read_loaded)


def read_loaded(place: str, topic: str, topic_id: str) -> Mapping[int, int] | None:
    """Returns the next offset to load of each partition; None if the warehouse has no table of this topic."""
    if lack := describe_missing_native():
        raise Refused(Code.INVALID_REQUEST, lack)
    from pyspark_tiered.delta.table_form import loaded_offsets
    from pyspark_tiered.delta.warehouse import Warehouse

    with closing(Warehouse(place)) as warehouse:
        state = warehouse.find(topic)
        if state is None or state.held_topic() != (topic_id, topic):
            return None
        return loaded_offsets(state.versions(), topic_id)
