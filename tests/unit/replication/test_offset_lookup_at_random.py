"""Random logs whose look-ups by time are compared with a list of all records.

Records come in order and out of order, with several codecs. Segments are rolled, uploaded and dropped from the disk,
and records are deleted, before and during the look-ups. Sub-manifests have two nodes, so that they nest.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.seeds import first_seeds
from tests.unit.replication.rig import ReplicationRig
from tests.unit.replication.test_offset_lookup import SMALL, find_newest
from tiered.records.batch import encode_batch
from tiered.records.model import Codec
from tiered.replication.leader_replica import LeaderReplica

STEPS = 60
BASE_MS = 1_000_000_000
SPAN = 60
"""Timestamps are at most so much later than `BASE_MS`, so that many records have the same."""


class RandomLog:
    """One log under random changes, and the list of what was ever written to it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = ReplicationRig(seed, config=SMALL, fan=2)
        self.timestamps: list[int] = []
        self.replica: LeaderReplica

    async def change(self) -> None:
        """Does one random change."""
        replica, rng = self.replica, self.rng
        match rng.choice(("append",) * 6 + ("roll", "upload", "upload", "upload", "drop", "delete")):
            case "append":
                self._append()
            case "roll":
                replica.roll()
            case "upload":
                manifest = await replica.take_over_manifest()
                replica.unified_log.update_manifest(manifest)
                written = await replica.cold.uploader.upload_next(replica.log, manifest, 0, replica.log.end_offset)
                if written is not None:
                    replica.unified_log.update_manifest(written)
            case "drop":
                await replica.log.drop_local_below(replica.cold_end_offset)
            case "delete":
                start = replica.log_start_offset
                if rng.random() < 0.4:
                    await replica.deletion.delete_records(min(start + rng.randint(1, 8), len(self.timestamps)))

    def _append(self) -> None:
        rng = self.rng
        late = rng.choice((len(self.timestamps) // 4, len(self.timestamps) // 4, rng.randint(0, SPAN)))
        stamps = [BASE_MS + late + rng.choice((0, 1, -1, 20 * (rng.random() < 0.1))) for _ in range(rng.randint(1, 4))]
        records = [(stamp, b"k", rng.randbytes(rng.choice((20, 200))), ()) for stamp in stamps]
        self.replica.append_now(bytearray(encode_batch(records, codec=rng.choice(list(Codec)))), 1)
        self.timestamps += stamps

    def first_late(self, timestamp: int, start: int) -> int | None:
        """Returns the offset of the first record from `start` on that is late enough."""
        late = (at for at in range(start, len(self.timestamps)) if self.timestamps[at] >= timestamp)
        return next(late, None)

    async def look_up(self, timestamp: int) -> None:
        """Looks a time up, perhaps while the log changes. The answer is right for the log start at its end."""
        asked = self.replica.log_start_offset, len(self.timestamps)
        found = await self.replica.reads.offset_for_timestamp(timestamp)
        start = self.replica.log_start_offset
        wanted = self.first_late(timestamp, start)
        if found is None:
            assert wanted is None or wanted >= asked[1], (timestamp, wanted, asked)
        else:
            assert found[:2] == (wanted, self.timestamps[found[0]]), (timestamp, found, wanted, asked, start)

    async def check_all(self) -> None:
        """Looks up every time, and the greatest one."""
        for timestamp in range(BASE_MS - 2, max(self.timestamps, default=BASE_MS) + 2):
            await self.look_up(timestamp)
        start = self.replica.log_start_offset
        newest = max(self.timestamps[start:], default=None)
        wanted = (-1, -1) if newest is None else (self.first_late(newest, start), newest)
        assert (await find_newest(self.replica))[:2] == wanted

    async def run(self, *, together: bool) -> None:
        """Makes the changes, with look-ups between them or beside them."""
        broker = self.rig.brokers[1]
        self.replica = await broker.lead(0, [1])
        pending: list[asyncio.Task[None]] = []
        for step in range(STEPS):
            await self.change()
            if together:
                broker.faults.first_byte_seconds = self.rng.choice((0.01, 0.1, 0.5))
                self.replica.cold.manifests._submanifests.clear()
                self.replica.cold.reader._cache._chunks.clear()
                pending.append(asyncio.create_task(self.look_up(BASE_MS + self.rng.randint(0, SPAN))))
            elif step % 20 == 19:
                await self.check_all()
        for each in pending:
            await each
        await self.check_all()


@pytest.mark.parametrize("seed", first_seeds(10, 40))
def test_look_ups_are_those_of_a_list(seed: int) -> None:
    log = RandomLog(seed)
    log.rig.run(lambda: log.run(together=False))


@pytest.mark.parametrize("seed", first_seeds(10, 40))
def test_look_ups_are_those_of_a_list_while_the_log_changes(seed: int) -> None:
    log = RandomLog(1000 + seed)
    log.rig.run(lambda: log.run(together=True))
