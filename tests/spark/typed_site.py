"""A topic with JSON values in a directory, and its typed table without a JVM, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.load.load import LoadOptions, LoadProgress, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.log.bucket import ColdTopicReader
from pyspark_tiered.log.plan import ColdTopic
from pyspark_tiered.proof.erasures import Erasure
from pyspark_tiered.proof.verify import VerifyResult, verify_values
from pyspark_tiered.schemas.registry import ANY_REGISTRY, RegistryChoice
from pyspark_tiered.typed.form import ValueRules
from pyspark_tiered.typed.kinds import describe_columns, select_columns
from pyspark_tiered.typed.tables import DeadLetters, RecordTable, TypedTable
from tests.spark import filling
from tiered.ids import PartitionId

TOPIC = filling.topic_id(1)
JSON = LoadOptions(values=ValueRules("json"))


class Site:
    """A store with the topic `t`, and a warehouse, both in a directory."""

    def __init__(self, root: Path, partitions: int = 1) -> None:
        self.store, self.warehouse = f"file://{root}/store", str(root / "tables")
        self._ends = dict.fromkeys(range(partitions), 0)
        filling.create_topic(self.store, "t", TOPIC, partitions)

    def write(
        self,
        values: Sequence[bytes | None],
        partition: int = 0,
        keys: Sequence[bytes | None] | None = None,
        headers: tuple[tuple[str, bytes], ...] = (("h", b"x"),),
    ) -> None:
        first = self._ends[partition]
        both = zip(keys or [b"k"] * len(values), values, strict=True)
        rows = [(filling.BASE_MS + first + i, key, value, headers) for i, (key, value) in enumerate(both)]
        segments = list(filling.segments(rows, base_offset=first))
        filling.upload(self.store, "t", PartitionId(TOPIC, partition), segments)
        self._ends[partition] += len(values)

    def load(
        self, options: LoadOptions = JSON, split_bytes: int | None = None, spark: SparkSession | None = None
    ) -> LoadProgress:
        """Loads by the native engine, or by Spark in this session."""
        engine = NativeEngine() if spark is None else None
        return load(
            self.store, "t", self.warehouse, engine=engine, spark=spark, options=options, split_bytes=split_bytes
        )

    def typed(self) -> TypedTable:
        table = TypedTable(f"file:{self.warehouse}/t_typed", "t", TOPIC)
        table.snapshot()
        return table

    def dead(self) -> DeadLetters:
        table = DeadLetters(f"file:{self.warehouse}/t__dead", "t", TOPIC)
        table.snapshot()
        return table

    def verify(
        self, erased: Mapping[int, tuple[Range, ...]] | None = None, registry: RegistryChoice = ANY_REGISTRY
    ) -> VerifyResult:
        """Compares the typed table with the bucket."""

        def read_log() -> tuple[ColdTopic, list[Erasure]]:
            with closing(ColdTopicReader(self.store)) as reader:
                return reader.read("t", {}), [Erasure(TOPIC, 0, "", "", erased or {})]

        return verify_values(NativeEngine(), self.store, read_log, self.typed(), self.dead(), registry)

    def columns(self) -> str:
        return describe_columns(select_columns(self.typed().schema()))

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """Returns these columns of all typed rows, in the order of partition and offset."""
        return rows_of(self.typed(), names)

    def file_columns(self) -> list[set[str]]:
        """Returns the names of the columns of each file."""
        root = Path(self.warehouse, "t_typed")
        return [set(pq.read_schema(root / add["path"]).names) for add in self.typed().files()]

    def letters(self) -> dict[int, str]:
        """Returns offset and error of the dead letters, which must be there once each."""
        found = rows_of(self.dead(), ("_offset", "_error"))
        assert len(dict(found)) == len(found)
        return dict(found)

    def check_offsets(self) -> None:
        """Each offset is a row or a dead letter, once."""
        held = rows_of(self.typed(), ("_partition", "_offset")) + rows_of(self.dead(), ("_partition", "_offset"))
        assert sorted(held) == [(number, at) for number, end in self._ends.items() for at in range(end)]


def rows_of(table: RecordTable, names: Sequence[str]) -> list[tuple[Any, ...]]:
    found = []
    for add in table.files():
        held = pq.read_table(Path(table.url.removeprefix("file:"), add["path"]))
        for row in held.to_pylist():
            found.append(((row["_partition"], row["_offset"]), tuple(row.get(name) for name in names)))
    return [row for _, row in sorted(found, key=lambda each: each[0])]


def encode(*values: Any) -> list[bytes]:
    """Returns the JSON of each value."""
    return [json.dumps(value).encode() for value in values]


def rewrite(table: RecordTable, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Changes the rows in a table's only file behind its back."""
    (add,) = table.files()
    path = Path(table.url.removeprefix("file:"), add["path"])
    held = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist(change(held.to_pylist()), schema=held.schema), path)
