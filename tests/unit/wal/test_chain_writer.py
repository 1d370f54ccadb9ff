"""Tests of a broker's chain: windows, confirmations, fences, faults of the bucket, trims."""

from __future__ import annotations

import pytest

from tests.scenario import in_rig
from tests.unit.wal.rig import ONE, THREE, TWO, Rig
from tiered.errors import Code, Fenced, Refused, Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.wal.trimming import LISTED_NS
from tiered.wal.window import UNDECIDED_BYTES_MAX, UNDECIDED_MAX, WindowSettings


@in_rig(Rig)
async def test_records_count_once_they_are_in_the_bucket(rig: Rig) -> None:
    broker = rig.broker()
    broker.lead(ONE, 1)
    broker.faults.first_byte_seconds = 0.06
    broker.append(ONE, b"a", b"b")
    await rig.clock.sleep(0.05)
    assert broker.stored[ONE] == 0
    await broker.wait_stored(ONE, 2)
    assert rig.slots() == ["00"]


@in_rig(Rig)
async def test_partitions_share_a_window(rig: Rig) -> None:
    broker = rig.broker()
    for each in (ONE, TWO, THREE):
        broker.lead(each, 1)
        broker.append(each, b"a")
    for each in (ONE, TWO, THREE):
        await broker.wait_stored(each, 1)
    assert rig.slots() == ["00"]


@in_rig(Rig)
async def test_records_from_before_a_leadership_are_put_too(rig: Rig) -> None:
    broker = rig.broker()
    broker.lead(ONE, 1)
    broker.append(ONE, b"a", b"b", b"c")
    await broker.wait_stored(ONE, 3)
    broker.lead(ONE, 2, stored_end=1)
    await broker.wait_stored(ONE, 3)
    assert rig.slots() == ["00", "01"]


@in_rig(Rig)
async def test_window_ends_with_the_batch_that_fills_it(rig: Rig) -> None:
    broker = rig.broker()
    broker.lead(ONE, 1)
    broker.append(ONE, *[b"x" * 400] * 5, b"y" * 3_000, b"z")
    await broker.wait_stored(ONE, 7)
    sizes = [len(stored.data) for key, stored in sorted(rig.bucket.objects.items())]
    assert [size // 1_000 for size in sizes] == [1, 4, 0], "1,200, 3,800 and 1 byte of batches"


@in_rig(Rig)
async def test_some_windows_are_put_at_a_time_and_no_more(rig: Rig) -> None:
    broker = rig.broker()
    broker.lead(ONE, 1)
    broker.faults.first_byte_seconds = 1.0
    broker.append(ONE, *[b"x" * 1_000] * 30)
    await rig.clock.sleep(1.5)
    assert len(rig.slots()) == UNDECIDED_MAX == broker.stored[ONE]
    await broker.wait_stored(ONE, 30)


@in_rig(Rig)
async def test_windows_in_memory_are_bounded_by_bytes(rig: Rig) -> None:
    broker = rig.broker(settings=WindowSettings(250_000_000, UNDECIDED_BYTES_MAX // 2))
    broker.lead(ONE, 1)
    broker.faults.first_byte_seconds = 1.0
    broker.append(ONE, *[bytes(UNDECIDED_BYTES_MAX // 2)] * 4)
    await rig.clock.sleep(1.5)
    assert len(rig.slots()) == 2 == broker.stored[ONE]
    await broker.wait_stored(ONE, 4)


@in_rig(Rig)
async def test_rest_is_put_without_a_wait_for_others(rig: Rig) -> None:
    broker = rig.broker()
    for each in (ONE, TWO):
        broker.lead(each, 1)
        broker.append(each, b"a")
    await rig.clock.sleep(0.001)
    began_ns = rig.clock.mono_ns()
    assert await broker.writer.put_rest(5.0)
    assert broker.stored == {ONE: 1, TWO: 1} and rig.clock.mono_ns() - began_ns < 250_000_000
    assert await broker.writer.put_rest(5.0), "nothing waits"


@in_rig(Rig)
async def test_rest_that_the_bucket_does_not_take_is_told(rig: Rig) -> None:
    broker = rig.broker()
    broker.lead(ONE, 1)
    broker.fail(FaultRule(FaultKind.ERROR, ("put",)))
    broker.append(ONE, b"a")
    assert not await broker.writer.put_rest(5.0)


@in_rig(Rig)
async def test_slot_that_is_undecided_holds_back_what_is_behind_it(rig: Rig) -> None:
    broker = rig.broker()
    broker.lead(ONE, 1)
    broker.lead(TWO, 1)
    broker.fail(FaultRule(FaultKind.DELAY, ("put",), key="0" * 20, seconds=5.0))
    broker.append(ONE, b"x" * 1_000)
    await rig.clock.sleep(0.1)
    broker.append(TWO, b"y" * 1_000)
    await rig.clock.sleep(2.0)
    assert rig.slots() == ["01"] and broker.stored == {ONE: 0, TWO: 0}
    await broker.wait_stored(TWO, 1)
    assert broker.stored[ONE] == 1


@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.LOST_REPLY, FaultKind.CONFLICT, FaultKind.LATE_APPLY])
def test_put_without_a_reply_is_read_back(kind: FaultKind) -> None:
    rig = Rig()

    async def scenario() -> None:
        broker = rig.broker()
        broker.lead(ONE, 1)
        broker.fail(FaultRule(kind, ("put",), times=3, seconds=0.3))
        broker.append(ONE, b"a")
        await broker.wait_stored(ONE, 1)
        broker.append(ONE, b"b")
        await broker.wait_stored(ONE, 2)
        assert rig.slots() == ["00", "01"]

    rig.run(scenario)


@pytest.mark.parametrize(
    "error", [Unavailable("an I/O error"), Refused(Code.OFFSET_OUT_OF_RANGE, "deleted")], ids=["failed", "deleted"]
)
@in_rig(Rig)
async def test_batches_that_the_disk_does_not_give_hold_up_no_other_partition(
    rig: Rig, *, error: Unavailable | Refused
) -> None:
    broker = rig.broker()
    broker.lead(ONE, 1)
    broker.lead(TWO, 1)
    broker.logs[ONE].read_error = error
    broker.append(ONE, b"a")
    broker.append(TWO, b"b")
    await broker.wait_stored(TWO, 1)
    await rig.clock.sleep(60.0)
    assert broker.stored[ONE] == 0 and rig.slots() == ["00"]


@in_rig(Rig)
async def test_outage_of_the_bucket_only_delays(rig: Rig) -> None:
    broker = rig.broker()
    broker.lead(ONE, 1)
    broker.faults.outage = True
    broker.append(ONE, b"a")
    await rig.clock.sleep(60.0)
    assert broker.stored[ONE] == 0 and broker.writer.last_error
    broker.faults.outage = False
    await broker.wait_stored(ONE, 1)
    assert not broker.writer.last_error


@in_rig(Rig)
async def test_owner_gives_up_what_a_fence_names_and_keeps_the_rest(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    for each in (ONE, TWO):
        owner.lead(each, 3)
        owner.append(each, b"a")
    await owner.wait_stored(TWO, 1)
    await other.take_over(owner.chain, 4, ONE)
    owner.append(ONE, b"lost")
    owner.append(TWO, b"b")
    await owner.wait_stored(TWO, 2)
    assert owner.fenced == [ONE] and owner.stored[ONE] == 1
    fenced = await other.take_over(owner.chain, 5, ONE, TWO)
    assert await other.read(fenced.extents_of(ONE)) == b"a"
    assert await other.read(fenced.extents_of(TWO)) == b"ab"


@in_rig(Rig)
async def test_fence_of_an_earlier_epoch_ends_nothing(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 9)
    await other.take_over(owner.chain, 4, ONE)
    owner.append(ONE, b"a")
    await owner.wait_stored(ONE, 1)
    assert not owner.fenced and rig.slots() == ["00", "01"]


@in_rig(Rig)
async def test_records_behind_a_lost_slot_wait_for_those_before_them(rig: Rig) -> None:
    """Two windows of one partition are under way, and the slot of the first one goes to a fence of another partition:
    its records get a later slot than those after them."""
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 3)
    owner.fail(FaultRule(FaultKind.DELAY, ("put",), key="0" * 20, seconds=1.0, times=1))
    owner.append(ONE, b"a" * 1_000)
    await rig.clock.sleep(0.1)
    owner.append(ONE, b"b" * 1_000)
    await rig.clock.sleep(0.1)
    await other.take_over(owner.chain, 4, TWO)
    owner.fail(FaultRule(FaultKind.DELAY, ("put",), key="02", seconds=2.0, times=1))
    await rig.clock.sleep(2.0)
    assert owner.stored[ONE] == 0 and rig.slots() == ["00", "01"]
    await owner.wait_stored(ONE, 2)
    fenced = await other.take_over(owner.chain, 5, ONE)
    assert rig.slots() == ["00", "01", "02", "03"]
    assert sorted(each.extent.base_offset for each in fenced.extents_of(ONE)) == [0, 1]


def test_second_process_of_an_incarnation_ends_itself() -> None:
    rig = Rig()

    async def scenario() -> None:
        first, second = rig.broker(), rig.broker()
        for each in (first, second):
            each.lead(ONE, 1)
            each.append(ONE, b"a")
        await rig.clock.sleep(1.0)

    with pytest.raises(ExceptionGroup) as raised:
        rig.run(scenario)
    [error] = raised.value.exceptions
    assert isinstance(error, Fenced) and "two processes" in str(error)


@in_rig(Rig)
async def test_trim_deletes_what_is_in_segments(rig: Rig) -> None:
    broker = rig.broker()
    broker.lead(ONE, 1)
    broker.lead(TWO, 1)
    for number in range(6):
        broker.append(ONE, b"a")
        await broker.wait_stored(ONE, number + 1)
        await rig.clock.sleep(120.0)
    broker.append(TWO, b"b")
    await broker.wait_stored(TWO, 1)
    await broker.writer.trim({ONE: 4})
    assert rig.slots() == ["01", "02", "03", "04", "05", "06"], "slot 1 is the newest that is old enough"
    await rig.clock.sleep(LISTED_NS / 1e9)
    await broker.writer.trim({ONE: 4})
    assert rig.slots() == ["04", "05", "06"]
    await broker.writer.trim({ONE: 6, TWO: 1})
    assert rig.slots() == ["06"], "the newest slot tells where the chain ends"


@in_rig(Rig)
async def test_window_behind_a_fence_confirms_nothing_of_its_partitions(rig: Rig) -> None:
    """The fence is found by another window than the one that it makes void."""
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 3)
    owner.lead(TWO, 3)
    owner.fail(FaultRule(FaultKind.DELAY, ("put",), key="0" * 20, seconds=1.0, times=1))
    owner.append(TWO, b"a" * 1_000)
    await rig.clock.sleep(0.1)
    owner.append(ONE, b"b" * 1_000)
    await rig.clock.sleep(0.1)
    await other.take_over(owner.chain, 4, ONE)
    await owner.wait_stored(TWO, 1)
    assert owner.stored[ONE] == 0 and owner.fenced == [ONE]


@in_rig(Rig)
async def test_leadership_that_ended_is_told_of_nothing_more(rig: Rig) -> None:
    owner = rig.broker()
    owner.lead(ONE, 3)
    owner.fail(FaultRule(FaultKind.DELAY, ("put",), key="0" * 20, seconds=1.0, times=1))
    owner.append(ONE, b"a")
    await rig.clock.sleep(0.1)
    owner.writer.remove(owner.owners[ONE])
    await rig.clock.sleep(5.0)
    assert rig.slots() == ["00"] and owner.stored[ONE] == 0
