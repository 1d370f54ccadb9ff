"""Tests of the rules of the bucket: which writes of snapshots and of unknown objects break I20."""

from __future__ import annotations

import pytest

from tests.sim.harness.bucket_rules import BucketRules
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.store import SimBucket

SNAPSHOT = "groups/AAAAAAAAAAAAAAAAAAAAAQ/0/0000000001-00000000000000000005"


def write(*steps: tuple[str, bytes | None]) -> None:
    """Writes objects in order; without content an object is deleted."""
    loop = SimLoop(0)
    bucket = SimBucket(loop)
    BucketRules(bucket)

    async def run() -> None:
        for key, content in steps:
            if content is None:
                await bucket.memory.delete([key])
            else:
                await bucket.memory.put(key, content)

    loop.run(run())


def test_snapshot_may_come_again_with_the_same_bytes_or_after_its_deletion() -> None:
    write((SNAPSHOT, b"a"), (SNAPSHOT, b"a"), (SNAPSHOT, None), (SNAPSHOT, b"b"))


def test_snapshot_that_is_replaced_by_other_bytes_breaks_a_rule() -> None:
    with pytest.raises(AssertionError, match=r"I20: .* was written twice"):
        write((SNAPSHOT, b"a"), (SNAPSHOT, b"b"))


def test_object_of_an_unknown_kind_breaks_a_rule() -> None:
    write(("meta/probe/0123456789abcdef", b"a"))
    with pytest.raises(AssertionError, match="I20: notes/7 is of no kind"):
        write(("notes/7", b"a"))
