"""New leaders whose log is not that of the manifest, under the reference model: the bucket wins (R5).

The leader before was cut off, and wrote what its successor does not have. The successor uploads its own records.
"""

from __future__ import annotations

import pytest

from tests.scenario import run_by
from tests.sim.rig.broker_rig import read_values
from tests.sim.scenarios.judged import Judged, run_judged
from tests.sim.scenarios.three import SimBroker

TIERED = {
    "internal_segment_bytes": "1024", "local_retention_bytes": "1", "min_insync_replicas": "1",
    "unclean_leader_election_enable": "true", "file_delete_delay_ms": "0",
}  # fmt: skip


async def upload_all(of: Judged, broker: SimBroker) -> int:
    """Closes the active segment of a leader; returns the cold end once all is in the bucket."""
    replica = of.leader(broker)
    replica.roll()
    end = replica.log.end_offset
    await of.wait(lambda: replica.cold_end_offset == end)
    return end


async def part(of: Judged, *, before: int, apart: int, after: int) -> tuple[int, list[bytes]]:
    """`a` uploads `before` records, is cut off and writes `apart` more. `b` leads and uploads `after` others, and dies.
    Then `a` leads again. Returns the cold end and the values of the records in the bucket."""
    a, b, _ = await of.begin(replicas=2, records=before, **TIERED)
    await of.wait_isr(a, b)
    start = await upload_all(of, a)
    await of.wait(lambda: of.leader(a).local_start_offset == start, 60)
    of.isolate(a, b, of.c)
    await of.write(a, apart, acks=1)
    await of.wait(lambda: of.leads(b))
    await of.write(b, after)
    end = await upload_all(of, b)
    stored = await read_values(of.leader(b), 0)
    await of.kill(a)
    of.heal()
    await of.kill(b)
    await a.start()
    await of.wait(lambda: of.leads(a))
    return end, stored


@pytest.mark.parametrize(("apart", "after"), [(6, 6), (9, 6), (3, 6)], ids=["as-long", "longer", "shorter"])
@run_by(run_judged)
async def test_leader_of_another_history_begins_at_the_cold_end(of: Judged, *, apart: int, after: int) -> None:
    end, stored = await part(of, before=6, apart=apart, after=after)
    replica = of.leader(of.a)
    assert (replica.epoch_start, replica.log.end_offset) == (end, end)
    await of.write(of.a, 2)
    assert (await read_values(replica, 0))[:end] == stored
    await of.b.start()
    await of.wait_alike(of.a, of.b)


@run_by(run_judged)
async def test_leader_that_was_in_sync_takes_the_manifest_over_soon(of: Judged) -> None:
    """Nobody writes. The leader before is frozen, and changes nothing when it goes on."""
    a, b, _ = await of.begin(replicas=2, records=6, **TIERED)
    await of.wait_isr(a, b)
    end = await upload_all(of, a)
    old = of.leader(a)
    of.three.loop.freeze(a.process)
    await of.wait(lambda: of.leads(b))
    await of.sleep(5)
    manifest = await b.node.cold_tier.manifests.load(old.partition_id)
    assert manifest is not None
    assert (manifest.leader_epoch, manifest.cold_end_offset) == (of.now.leader_epoch, end)
    of.three.loop.resume(a.process)
    await of.wait_alike(a, b)


@run_by(run_judged)
async def test_deleted_records_stay_deleted_under_the_next_leader(of: Judged) -> None:
    """The next leader was in sync, and reads the log start from the manifest."""
    a, b, _ = await of.begin(replicas=2, records=9, **TIERED)
    await of.wait_isr(a, b)
    await upload_all(of, a)
    of.model.requested_start = lambda tp: 4
    assert await of.leader(a).deletion.delete_records(4) == 4
    await of.kill(b)
    await of.wait_isr(a)
    await of.kill(a)
    await b.start()
    await a.start()
    await of.wait(lambda: of.now.leader != -1 and of.leads(of.three.brokers[of.now.leader]))
    assert of.leader(of.three.brokers[of.now.leader]).log_start_offset == 4
    await of.wait_alike(a, b)


@run_by(run_judged)
async def test_leader_with_fewer_records_begins_at_the_cold_end(of: Judged) -> None:
    """It lacks records of the same leader, which are in the bucket only."""
    a, b, _ = await of.begin_alike(replicas=2, records=3, **TIERED)
    of.isolate(a, b)
    await of.write(a, 3, acks=1)
    await of.wait_isr(a)
    end = await upload_all(of, a)
    stored = await read_values(of.leader(a), 0)
    await of.kill(a)
    of.heal()
    await of.wait(lambda: of.leads(b))
    assert of.leader(b).epoch_start == end
    await of.write(b, 2)
    assert (await read_values(of.leader(b), 0))[:end] == stored
    await a.start()
    await of.wait_alike(a, b)


@run_by(run_judged)
async def test_follower_keeps_what_the_bucket_lacks(of: Judged) -> None:
    a, b = of.a, of.b
    await of.create(a, b, **TIERED)
    for each in (a, b):
        each.machine.faults.outage = True
    await of.write(a, 20)
    await of.sleep(5)
    assert of.follower(b).log.local_start_offset == 0
    for each in (a, b):
        each.machine.faults.outage = False
    await of.wait(lambda: of.follower(b).log.local_start_offset > 0)
    await of.wait_alike(a, b)
