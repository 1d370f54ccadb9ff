"""Tests of the record of erased rows: it is read back as it was written, and refused if it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_tiered.proof.erasures import (
    ERASED,
    Erasure,
    decode_erasure,
    explain_erased,
    join_ranges,
    read_erasures,
    write_erasure,
)
from pyspark_tiered.proof.gaps import Gap
from pyspark_tiered.proof.sums import OffsetRange
from tiered.errors import Corrupt, Refused

ONE = Erasure("topic", 1_700_000_000_000, "key = 'a'", "asked by a", {0: ((3, 5), (9, 10)), 2: ((0, 1),)})


def test_records_are_read_back_for_their_topic_only(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/a b%20c"
    Path(f"{tmp_path}/a b%20c").mkdir()
    assert read_erasures(url, "topic") == []
    write_erasure(url, ONE, "1.json")
    write_erasure(url, ONE._replace(topic_id="older"), "2.json")
    assert read_erasures(url, "topic") == [ONE]
    assert ONE.rows == 4


def test_erased_ranges_are_joined_by_partition() -> None:
    other = ONE._replace(ranges={0: ((4, 7), (10, 11))})
    assert join_ranges([ONE, other]) == {0: ((3, 7), (9, 11)), 2: ((0, 1),)}


def test_hole_is_explained_where_its_rows_were_erased() -> None:
    gaps, left = explain_erased([OffsetRange(0, 0, 10), OffsetRange(1, 0, 2)], {0: ((3, 5), (9, 20))})
    assert gaps == [Gap(0, 3, 5, ERASED), Gap(0, 9, 10, ERASED)]
    assert left == [OffsetRange(0, 0, 3), OffsetRange(0, 5, 9), OffsetRange(1, 0, 2)]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 1}', ONE.encode()[:-1]])
def test_record_that_cannot_be_read_is_damage(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"erasure cannot be read.*where=x\.json"):
        decode_erasure(data, "x.json")


def test_record_of_a_later_version_is_refused() -> None:
    with pytest.raises(Refused, match="has version 2"):
        decode_erasure(ONE.encode().replace(b'"version": 1', b'"version": 2'), "x.json")
