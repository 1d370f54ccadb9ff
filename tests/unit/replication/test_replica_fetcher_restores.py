"""Tests of records that a follower drops: diverged records, and its whole log if the bucket has more."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import DirectPeers, ReplicationRig, RunningFetchers, read_log
from tests.unit.replication.test_replica_fetcher import fill, is_equal, upload, wait_until
from tiered.errors import Unavailable


@in_rig(ReplicationRig)
async def test_truncation_lowers_the_followers_high_watermark(rig: ReplicationRig) -> None:
    peers, two = DirectPeers(rig), rig.brokers[2]
    first = await two.lead(0, [2])
    await fill(first, 5)
    replica = await rig.brokers[1].lead(1, [1], [1, 2])
    await fill(replica, 3)
    copy = await RunningFetchers(rig, two, peers).follow(1, 1, high_watermark=5)
    assert copy.high_watermark == 5
    peers.add_leader(replica)
    await wait_until(lambda: is_equal(copy, replica))
    assert copy.high_watermark == 3


@pytest.mark.parametrize("gone", [True, False], ids=["led by now", "grown by now"])
@in_rig(ReplicationRig)
async def test_log_that_grew_meanwhile_is_not_restarted_at_the_cold_end(rig: ReplicationRig, *, gone: bool) -> None:
    first = await rig.brokers[1].lead(0, [1])
    await fill(first, 100)
    cold_end = await upload(first)
    copy = await RunningFetchers(rig, rig.brokers[2], DirectPeers(rig)).follow(1, 0)
    rig.brokers[2].faults.first_byte_seconds = 1.0
    restoring = asyncio.ensure_future(copy.restore_from_bucket(rig.brokers[2].cold))
    await asyncio.sleep(1.5)  # the manifest is there, what the bucket knows of the past is on its way
    if gone:
        copy.stop()
    else:
        copy.log.append_as_follower(read_log(first.log)[: len(batch(0))], now_ms=0)
    await restoring
    assert copy.log.end_offset == (0 if gone else 1) < cold_end


@in_rig(ReplicationRig)
async def test_log_is_never_replaced_by_a_bucket_that_has_less(rig: ReplicationRig) -> None:
    first = await rig.brokers[1].lead(0, [1])
    await fill(first, 100)
    cold_end = await upload(first)
    copy = await RunningFetchers(rig, rig.brokers[2], DirectPeers(rig)).follow(1, 0)
    copy.log.append_as_follower(read_log(first.log), now_ms=0)
    assert copy.log.end_offset > cold_end
    with pytest.raises(Unavailable, match="does not have more of it"):
        await copy.restore_from_bucket(rig.brokers[2].cold)
    assert copy.log.end_offset == 100 and copy.log.local_start_offset == 0
