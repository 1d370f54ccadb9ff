"""The comparison of a table in mode latest with a fold of the log: the last record of each key of a partition.

The log is read once for each slice of the keys, which the hash of a key chooses. So memory is bounded, however many
keys there are. A row and a record are compared by their hashes. Nothing of the load is used here but the readers of
segments, Parquet and deletion vectors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.delta.data_files import read_rows
from pyspark_tiered.delta.log_folder import open_folder
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.latest.table import count_rows
from pyspark_tiered.load.convert import GROUP_BYTES
from pyspark_tiered.log.bucket import BatchReader
from pyspark_tiered.log.plan import ColdTopic, splits
from pyspark_tiered.log.rows import constant_int_column
from pyspark_tiered.proof.row_hash import hash_records
from pyspark_tiered.proof.summing import read_log

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

SLICE_RECORDS = 3_000_000
"""Records of the log and rows of the table that are in memory at once, by their hashes: some 100 bytes each."""
SECRET_BYTES = 16
Fault = tuple[str, int, int]
"""Kind, partition and offset."""


class FoldFaults(NamedTuple):
    """The faults of a table, and its rows. `unproved` rows are of records that retention took from the log."""

    faults: list[Fault]
    rows: int
    unproved: int


def compare_with_fold(
    store: str, cold: ColdTopic, at: Snapshot, bounds: Mapping[int, Range], slice_records: int = SLICE_RECORDS
) -> FoldFaults:
    """Compares a version of a table with the fold of the log inside bounds. Raises `Corrupt` and `Unavailable`."""
    records = sum(high - low for low, high in bounds.values())
    rows = sum(_count(each.add) for each in at.files())
    slices = max(1, -(-(records + rows) // slice_records))
    secret = os.urandom(SECRET_BYTES)
    faults: list[Fault] = []
    found, unproved = 0, 0
    for number in range(slices):
        log = _Hashes(secret, number, slices)
        for each in _read_log(store, cold, bounds):
            log.add(each)
        table = _Hashes(secret, number, slices)
        with closing(open_folder(at.url)) as folder:
            for add, form in at.files():
                for each in read_rows(folder, add, form):
                    table.add(each)
        some, beyond = _compare(log.columns(), table.columns(), bounds)
        faults += some
        unproved += beyond
        found += table.rows
    return FoldFaults(sorted(faults), found, unproved)


def _count(add: Mapping[str, object]) -> int:
    return min(count_rows(add), SLICE_RECORDS)


def _read_log(store: str, cold: ColdTopic, bounds: Mapping[int, Range]) -> Iterator[pyarrow.RecordBatch]:
    with BatchReader(store) as reader:
        for split in splits(cold, bounds, 1):
            yield from read_log(reader, split, GROUP_BYTES)


class _Hashes:
    """Key, place and hash of rows whose keys are in a slice: numbers of 64 bits in columns."""

    def __init__(self, secret: bytes, number: int, slices: int) -> None:

        self.rows = 0
        self._secret = secret
        self._number = number
        self._slices = slices
        self._parts: list[NDArray[np.uint64]] = []

    def add(self, records: pyarrow.RecordBatch) -> None:
        """Adds those of these rows that are in the slice."""
        import numpy as np

        if not records.num_rows:
            return
        keys = _hash_keys(records, self._secret)
        mine = np.flatnonzero(keys[:, 0] % np.uint64(self._slices) == self._number)
        if not len(mine):
            return
        self.rows += len(mine)
        hashes = hash_records(records, records["value"], self._secret, has_timestamp_type=True)
        place = [records[name].to_numpy(zero_copy_only=False).astype(np.uint64) for name in ("partition", "offset")]
        is_null = records["value"].is_null().to_numpy(zero_copy_only=False).astype(np.uint64)
        columns = [keys[:, 0], keys[:, 1], *place, hashes[:, 0], hashes[:, 1], is_null]
        self._parts.append(np.stack([each[mine] for each in columns], axis=1))

    def columns(self) -> NDArray[np.uint64]:
        """Returns what was added."""
        import numpy as np

        return np.concatenate(self._parts) if self._parts else np.zeros((0, 7), np.uint64)


def _hash_keys(records: pyarrow.RecordBatch, secret: bytes) -> NDArray[np.uint64]:
    """Returns two numbers for the key of each row in its partition."""
    import pyarrow as pa

    rows, schema = records.num_rows, records.schema
    absent = {
        name: pa.nulls(rows, schema.field(name).type) for name in ("timestamp", "timestamp_type", "value", "headers")
    }
    columns = {"partition": records["partition"], "offset": constant_int_column(0, rows).cast(pa.int64())}
    wanted = columns | absent | {"key": records["key"]}
    plain = pa.RecordBatch.from_arrays([wanted[name] for name in schema.names], names=schema.names)
    return hash_records(plain, plain["value"], secret, has_timestamp_type=True)


def _compare(
    log: NDArray[np.uint64], table: NDArray[np.uint64], bounds: Mapping[int, Range]
) -> tuple[list[Fault], int]:
    """Returns the faults of a slice, and the number of rows of records that the log no longer has."""
    import numpy as np

    log = log[np.lexsort((log[:, 3], log[:, 1], log[:, 0], log[:, 2]))]
    is_last = np.ones(len(log), dtype=np.bool_)
    is_last[:-1] = (log[1:, :3] != log[:-1, :3]).any(axis=1)
    last = log[is_last]
    wanted = last[last[:, 6] == 0]
    both = np.concatenate([wanted, table])
    is_row = np.concatenate([np.zeros(len(wanted), np.bool_), np.ones(len(table), np.bool_)])
    order = np.lexsort((is_row, both[:, 3], both[:, 2]))
    both, is_row = both[order], is_row[order]
    is_same = np.zeros(len(both) + 1, dtype=np.bool_)  # as the place before
    is_same[1:-1] = (both[1:, 2:4] == both[:-1, 2:4]).all(axis=1)
    follows, before = is_same[:-1], np.roll(is_row, 1)
    has_hash = np.zeros(len(both), dtype=np.bool_)
    has_hash[1:] = (both[1:, 4:6] == both[:-1, 4:6]).all(axis=1)
    lows = np.zeros(len(both), dtype=np.uint64)
    for number, (low, _) in bounds.items():
        lows[both[:, 2] == number] = low
    is_alone = is_row & ~follows
    is_old = is_alone & (both[:, 3] < lows) & ~np.isin(both[:, 0], last[:, 0])
    kinds = {
        "duplicate": is_row & follows & before,
        "changed": is_row & follows & ~before & ~has_hash,
        "extra": is_alone & ~is_old,
        "missing": ~is_row & ~is_same[1:],
    }
    places = {kind: both[which, 2:4].tolist() for kind, which in kinds.items()}
    faults = [(kind, int(partition), int(offset)) for kind, each in places.items() for partition, offset in each]
    return faults, int(is_old.sum())
