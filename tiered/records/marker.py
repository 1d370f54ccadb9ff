"""End-transaction markers: the control batch that ends a producer's transaction in one partition (KIP-98).

The one record of the batch has the kind of the marker in its key, and the coordinator's epoch in its value. Producer id
and epoch are in the header of the batch.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.ports import Buffer
from tiered.records.batch import decode_header, decode_records, encode_batch

EPOCH_MOVES_FROM = 2
"""Transaction version from which on the marker has a later epoch than the records of its transaction (KIP-890)."""

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


class TransactionMarker(NamedTuple):
    """The end of one producer's transaction, for one partition. `version` is the transaction version of the request
    that brings the marker; the log does not keep it."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    version: int = 0

    @property
    def moves_epoch(self) -> bool:
        """True if the epoch of the marker must be later than that of the records."""
        return self.version >= EPOCH_MOVES_FROM


def encode_marker(marker: TransactionMarker, timestamp_ms: int) -> bytearray:
    """Returns the control batch of a marker, to be stamped with its offset."""
    key = _KEY.pack(0, _COMMIT if marker.commit else _ABORT)
    return bytearray(
        encode_batch(
            [(timestamp_ms, key, _VALUE.pack(0, marker.coordinator_epoch), ())],
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transactional=True,
            control=True,
        )
    )


def decode_marker(batch: Buffer) -> TransactionMarker:
    """Returns the marker in a control batch. Raises `Corrupt` if the batch has none."""
    head, records = decode_header(batch), decode_records(batch)
    if not records:
        raise Corrupt(f"control batch at offset {head.base_offset} has no record")
    key, value = records[0].key, records[0].value
    kind = _KEY.unpack_from(key)[1] if key is not None and len(key) >= _KEY.size else -1
    if kind not in (_ABORT, _COMMIT) or value is None or len(value) < _VALUE.size:
        raise Corrupt(f"control record at offset {head.base_offset} is not an end-transaction marker")
    coordinator_epoch = _VALUE.unpack_from(value)[1]
    return TransactionMarker(head.producer_id, head.producer_epoch, kind == _COMMIT, coordinator_epoch)
