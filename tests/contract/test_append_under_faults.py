"""Tests of rule M1 on the port alone: slots that are created with a nonce and read back have each record once, after
any fault.

Four writers append to one log of slots. A quarter of all writes fails, is lost, comes late or conflicts.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.fakes3 import FakeS3, HttpFault
from tests.s3_rules import BUCKET
from tests.scenario import run_alone, run_by
from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.store import SimBucket
from tiered.errors import Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule, Faults
from tiered.object_store.url import open_store
from tiered.ports import GetResult, ObjectStore, Ok
from tiered.system.clock import SystemClock, SystemRng

WRITERS = 4
KINDS = (FaultKind.ERROR, FaultKind.LOST_REPLY, FaultKind.LATE_APPLY, FaultKind.CONFLICT)


def slot_key(slot: int) -> str:
    return f"log/{slot:020d}"


async def took(store: ObjectStore, slot: int, record: bytes) -> bool:
    """True if the slot has this writer's record. Retries until the content of the slot is known."""
    while True:
        try:
            if isinstance(await store.put(slot_key(slot), record, if_absent=True), Ok):
                return True
            found = await store.get(slot_key(slot))
        except Unavailable:
            continue
        if isinstance(found, GetResult):
            return found.data == record


async def write(store: ObjectStore, writer: int, count: int) -> None:
    slot = 0
    for number in range(count):
        while not await took(store, slot, b"writer %d record %d" % (writer, number)):
            slot += 1
        slot += 1


async def check(store: ObjectStore, count: int) -> None:
    """Checks that every record is there once, in its writer's order, and that no slot is empty."""
    total = WRITERS * count
    records = []
    for slot in range(total):
        found = await store.get(slot_key(slot))
        assert isinstance(found, GetResult), f"slot {slot} is empty"
        records.append(found.data.decode())
    assert not isinstance(await store.get(slot_key(total)), GetResult)
    for writer in range(WRITERS):
        mine = [record for record in records if record.startswith(f"writer {writer} ")]
        assert mine == [f"writer {writer} record {number}" for number in range(count)]


@pytest.mark.parametrize("seed", range(12))
def test_each_record_is_in_one_slot_in_virtual_time(seed: int) -> None:
    loop = SimLoop(seed)
    clock, bucket = SimClock(loop), SimBucket(loop)
    rules = [
        FaultRule(kind, ("put",), probability=0.07, seconds=random.Random(seed).choice((0.5, 5, 60))) for kind in KINDS
    ]
    faulty = [
        bucket.store(Faults(rules, random.Random(f"{seed}/{writer}"), first_byte_seconds=0.01), clock)
        for writer in range(WRITERS)
    ]

    async def main() -> None:
        await asyncio.gather(*(write(store, writer, 60) for writer, store in enumerate(faulty)))
        await clock.sleep(120)
        await check(bucket.store(Faults(), clock), 60)

    loop.run(main())
    assert all(sum(store.hits[kind] for store in faulty) for kind in KINDS)


@run_by(run_alone)
async def test_each_record_is_in_one_slot_on_s3(*, fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    fake.faults += [HttpFault(kind, ("PUT",), probability=0.07, seconds=0.05) for kind in KINDS]
    store = open_store(f"s3://{BUCKET}/append", SystemClock(), SystemRng())
    await asyncio.gather(*(write(store, writer, 20) for writer in range(WRITERS)))
    await check(store, 20)
    await store.close()
