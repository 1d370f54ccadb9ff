"""Tests of the last record of each key, and of the row groups that may hold keys of a round."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tiered.latest.fold import keep_last
from pyspark_tiered.latest.keys import KeySet

KEYS = st.sampled_from([b"", b"a", b"aa", b"b", b"\xff"])
RECORDS = st.lists(st.tuples(st.integers(0, 2), KEYS), max_size=20)


def table_of(records: list[tuple[int, bytes]]) -> pa.Table:
    columns = {
        "partition": pa.array([number for number, _ in records], pa.int32()),
        "offset": pa.array(range(len(records)), pa.int64()),
        "key": pa.array([key for _, key in records], pa.binary()),
    }
    return pa.table(columns)


@given(RECORDS)
def test_last_record_of_each_key_of_a_partition_stays_in_order(records: list[tuple[int, bytes]]) -> None:
    last = {place: offset for offset, place in enumerate(records)}
    found = keep_last(table_of(records))
    assert [(each["partition"], each["key"], each["offset"]) for each in found.to_pylist()] == [
        (*place, last[place]) for place in sorted(last)
    ]
    assert sum(KeySet.of(found).counts()) == len(last)


@given(RECORDS, RECORDS)
def test_key_matches_in_its_own_partition(held: list[tuple[int, bytes]], wanted: list[tuple[int, bytes]]) -> None:
    rows, keys = table_of(held), KeySet.of(keep_last(table_of(wanted)))
    found = keys.match(rows["partition"].combine_chunks(), rows["key"].combine_chunks())
    assert found.tolist() == [place in set(wanted) for place in held]


def test_row_group_without_a_key_of_the_round_is_skipped(tmp_path: Path) -> None:
    rows = keep_last(table_of([(number, b"%03d" % key) for number in range(2) for key in range(30)]))
    pq.write_table(rows, tmp_path / "f", row_group_size=10)
    file = pq.ParquetFile(tmp_path / "f")
    keys = KeySet.of(table_of([(0, b"005"), (0, b"010x"), (1, b"020"), (2, b"000")]))
    held = [keys.may_be_in(file.metadata.row_group(at), "partition", "key") for at in range(6)]
    assert held == [True, True, False, False, False, True]
    pq.write_table(rows, tmp_path / "f", row_group_size=10, write_statistics=False)
    file = pq.ParquetFile(tmp_path / "f")
    assert all(keys.may_be_in(file.metadata.row_group(at), "partition", "key") for at in range(6))
