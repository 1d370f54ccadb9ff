"""The records of `__consumer_offsets`, byte for byte as Kafka has them."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """One record of the log; no value: a tombstone."""

    key: bytes
    value: bytes | None
