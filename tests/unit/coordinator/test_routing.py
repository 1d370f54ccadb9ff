"""Tests of the partition that coordinates a key: every client computes the same one, with Java's hash."""

from __future__ import annotations

import pytest

from tiered.coordinator.routing import partition_of


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("", 0),
        ("abc", 96_354),
        ("my-group", 1_906_497_762),
        ("\U0001f600", 1_772_899),
        ("polygenelubricants", 0),
    ],
    ids=["empty", "plain", "negative in Java", "two code units", "the smallest integer has no absolute value"],
)
def test_partition_is_the_hash_of_java_modulo_the_partitions(key: str, code: int) -> None:
    assert [partition_of(key, partitions) for partitions in (1, 3, 50, 1 << 31)] == [0, code % 3, code % 50, code]


def test_lone_surrogate_of_a_client_has_a_partition() -> None:
    assert partition_of("\ud83d", 1 << 31) == 0xD83D
