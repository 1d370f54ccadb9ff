"""Messages drawn from a seed by their tables: every kind of value, with the bounds of each."""

from __future__ import annotations

from random import Random
from typing import Any

from tiered_api.kafka.protocol import apis
from tiered_api.kafka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tiered_api.kafka.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from tiered_api.kafka.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tiered_api.kafka.protocol.primitives import id_text
from tiered_api.kafka.protocol.schema import FIRST_PRIVATE_TAG, FieldSpec, FieldType, Message, field_specs

TABLES: dict[str, type[Message]] = {
    table.__name__: table
    for table in (
        *(table for api in apis.APIS.values() for table in (api.request_type, api.response_type)),
        ConsumerProtocolSubscription,
        ConsumerProtocolAssignment,
        AddOffsetsToTxnRequest,
        AddOffsetsToTxnResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
    )
}
"""Every message that Kafka has too."""
KIO_ONLY = {
    f"{api}{what}"
    for api in (
        "ConsumerGroupDescribe",
        "ConsumerGroupHeartbeat",
        "UnregisterBroker",
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "DescribeDelegationToken",
        "InitializeShareGroupState",
        "ReadShareGroupState",
        "WriteShareGroupState",
        "DeleteShareGroupState",
        "ReadShareGroupStateSummary",
    )
    for what in ("Request", "Response")
}
"""Messages of which kafka-python has no definition."""
OURS: dict[str, type[Message]] = {
    table.__name__: table
    for api in (*apis.INTER_BROKER_APIS.values(), *apis.OPERATOR_APIS.values())
    for table in (api.request_type, api.response_type)
}
"""Messages among our brokers, and of our command line."""

INTEGERS = {
    FieldType.INT8: (-(2**7), 2**7 - 1),
    FieldType.INT16: (-(2**15), 2**15 - 1),
    FieldType.UINT16: (0, 2**16 - 1),
    FieldType.INT32: (-(2**31), 2**31 - 1),
    FieldType.UINT32: (0, 2**32 - 1),
    FieldType.INT64: (-(2**63), 2**63 - 1),
}
DOUBLES = (0.0, -1.5, 1e300, 1_048_576.0)
TEXTS = ("", "a", "orders", "é日😀", "\0", "x" * 126, "y" * 127, "z" * 300)
SIZES = (0, 0, 1, 1, 2, 3)
LONG = (126, 127, 130)
"""Sizes around the step at which a varint takes two bytes. They are rare, because structs of many structs are large."""


def versions(table: type[Message]) -> range:
    """Returns the versions that a table knows."""
    return range(table.spec.versions.low, table.spec.versions.high + 1)


class Drawn:
    """Values drawn from one seed. `gentle` values keep to the meaning of fields: known error codes, present times."""

    def __init__(self, seed: int, gentle: bool = False) -> None:
        self.random = Random(seed)
        self.gentle = gentle

    def message(self, table: type[Any], version: int) -> Any:
        """Returns a message or struct; fields that the version lacks keep their defaults."""
        held = {}
        for row in field_specs(table):
            if version not in row.versions or row.tag >= FIRST_PRIVATE_TAG:
                continue
            if version in row.tagged and self.random.random() < 0.4:
                continue
            held[row.name] = self.field(row, version)
        return table(**held)

    def field(self, row: FieldSpec, version: int) -> Any:
        """Returns a value of one field."""
        if version in row.nullable and self.random.random() < 0.3:
            return None
        if not row.is_array:
            return self.value(row, version)
        long = self.random.random() < 0.03 and (
            row.kind is not FieldType.STRUCT or not any(each.of for each in rows_of(row))
        )
        return [self.value(row, version) for _ in range(self.random.choice(LONG if long else SIZES))]

    def value(self, row: FieldSpec, version: int) -> Any:
        """Returns one value, or one element of an array."""
        rng = self.random
        if row.kind is FieldType.STRUCT:
            return self.message(row.of or object, version)
        if row.kind is FieldType.BOOL:
            return rng.random() < 0.5
        if row.kind is FieldType.FLOAT64:
            return rng.choice(DOUBLES)
        if row.kind is FieldType.STRING:
            return rng.choice(TEXTS)
        if row.kind is FieldType.UUID:
            return id_text(rng.randbytes(16))
        if row.kind in (FieldType.BYTES, FieldType.RECORDS):
            return rng.randbytes(rng.choice((0, 1, 61, 127, 128)))
        return self.integer(row)

    def integer(self, row: FieldSpec) -> int:
        """Returns a number; bounds are drawn often."""
        low, high = INTEGERS[row.kind]
        if self.gentle and row.name.endswith("error_code"):
            return self.random.choice((-1, 0, 3, 35, 100))
        if self.gentle and (row.name.endswith("_ms") or "timestamp" in row.name):
            return self.random.choice((0, 1, 1000, 1_700_000_000))
        return self.random.choice((low, high, 0, -1 if low else 1, self.random.randint(low, high)))


def rows_of(row: FieldSpec) -> tuple[FieldSpec, ...]:
    """Returns the rows of the table of a field."""
    return field_specs(row.of) if row.of else ()
