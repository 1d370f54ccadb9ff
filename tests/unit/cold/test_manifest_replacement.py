"""Tests of the replacement of a run of segments by cleaned successors, as a value and in the bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from tests.scenario import in_rig
from tests.unit.cold.rig import PID, TOPIC, Broker, Rig, entry, manifest
from tests.unit.cold.test_manifest import leaves, pack_all
from tiered.cold.layout import submanifest_key
from tiered.cold.manifest import Manifest, ManifestNode, SegmentEntry, SubmanifestNeeded, Submanifests, check_change
from tiered.cold.planner import find_replaced_keys
from tiered.errors import Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule

TEN = tuple(entry(10 * i, 10 * i + 10, size=100 + i) for i in range(10))


def cleaned(base: int, next_offset: int) -> SegmentEntry:
    """Returns the entry of an object that a clean wrote for these offsets."""
    made = entry(base, next_offset, epoch=2, size=50)
    return replace(made, record_count=3, cleaned_ms=7, key=made.key.replace(".seg", "-c.seg"))


def new_keys() -> Callable[[int], str]:
    made: list[int] = []

    def new_key(base: int) -> str:
        made.append(base)
        return f"new-{len(made)}-{base}"

    return new_key


def splice(
    made: Manifest, run: Sequence[SegmentEntry], successors: Sequence[SegmentEntry], subs: Submanifests
) -> tuple[Manifest, dict[str, Sequence[ManifestNode]]]:
    """Returns the manifest after the replacement, and all sub-manifests as the bucket then has them."""
    new = made.replace_segments(run, successors, subs, new_keys())
    return replace(new, unwritten=()), {**subs, **{each.key: each.nodes for each in new.unwritten}}


def test_run_is_replaced_by_one_successor_and_bytes_and_counts_shrink() -> None:
    made = manifest(*TEN)
    new, _ = splice(made, TEN[2:5], [cleaned(20, 50)], {})
    assert new.nodes == (*TEN[:2], cleaned(20, 50), *TEN[5:])
    assert (new.segment_count, new.cold_bytes) == (8, made.cold_bytes - 102 - 103 - 104 + 50)
    check_change(made, new)


@pytest.mark.parametrize("fan", [2, 3, 4])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 9), (1, 2), (3, 8), (9, 9), (2, 7), (0, 3)])
@pytest.mark.parametrize("start", [0, 15, 40])
def test_replacement_in_a_tree_equals_the_one_in_a_list(fan: int, first: int, last: int, start: int) -> None:
    made, subs = pack_all(manifest(*TEN), fan)
    made = made.advance_start(start, subs)
    run = [each for each in TEN[first : last + 1] if each.next_offset > start]
    if not run:
        return
    middle = run[len(run) // 2].base_offset
    ends = [run[0].base_offset, middle, run[-1].next_offset] if middle > run[0].base_offset else [
        run[0].base_offset, run[-1].next_offset,
    ]  # fmt: skip
    successors = [cleaned(*pair) for pair in pairwise(ends)]
    new, there = splice(made, run, successors, subs)
    live = [each for each in leaves(new.nodes, {key: tuple(nodes) for key, nodes in there.items()})
            if each.next_offset > start]  # fmt: skip
    kept = [each for each in TEN if each.next_offset > start and each not in run]
    assert live == sorted([*kept, *successors], key=lambda each: each.base_offset)
    assert new.find_fault() == "" and new.cold_bytes == sum(each.log_bytes for each in live)
    assert new.segment_count == len(live)
    check_change(made, new)
    dropped = find_replaced_keys(made.nodes, run[0].base_offset, run[-1].next_offset, subs)
    alive = {node.key for node in walk(new.nodes, there)}
    assert not alive & {*dropped}
    assert {node.key for node in walk(made.nodes, subs) if node.next_offset > start} - alive <= {*dropped}


def walk(nodes: Sequence[ManifestNode], subs: Submanifests) -> list[ManifestNode]:
    """Returns all nodes of a tree."""
    found: list[ManifestNode] = []
    for node in nodes:
        found += [node, *(walk(subs[node.key], subs) if not isinstance(node, SegmentEntry) else ())]
    return found


def test_newest_segment_stays_in_the_manifest_after_a_clean_of_everything() -> None:
    made, subs = pack_all(manifest(*TEN), 2)
    assert made.submanifests
    new, _ = splice(made, TEN, [cleaned(0, 100)], subs)
    assert new.entries == (cleaned(0, 100),) and not new.submanifests


def test_replacement_needs_the_sub_manifests_of_its_run_only() -> None:
    made, subs = pack_all(manifest(*TEN), 2)
    with pytest.raises(SubmanifestNeeded) as wanted:
        made.replace_segments(TEN[:1], [cleaned(0, 10)], {}, new_keys())
    assert wanted.value.ref == made.nodes[0]
    newest = made.replace_segments(TEN[9:], [cleaned(90, 100)], {}, new_keys())
    assert newest.nodes == (*made.nodes[:-1], cleaned(90, 100)) and not newest.unwritten
    assert subs


@pytest.mark.parametrize(
    "other",
    [
        manifest(*TEN).advance_start(30, {}),
        manifest(*TEN).replace_segments(TEN[1:3], [cleaned(10, 30)], {}, new_keys()),
        manifest(*TEN[:4]),
    ],
    ids=["log start moved", "cleaned by another", "shorter"],
)
def test_run_that_is_not_there_as_a_whole_changes_nothing(other: Manifest) -> None:
    assert other.replace_segments(TEN[2:6], [cleaned(20, 60)], {}, new_keys()) is other


def test_successors_that_cover_other_offsets_are_a_bug() -> None:
    for wrong in ([cleaned(20, 40)], [cleaned(10, 50)], [cleaned(20, 30), cleaned(40, 50)]):
        with pytest.raises(AssertionError, match="other offsets"):
            manifest(*TEN).replace_segments(TEN[2:5], wrong, {}, new_keys())


@pytest.mark.parametrize(
    ("successor", "why"),
    [
        (replace(cleaned(20, 50), cleaned_ms=-1), "below the cold end"),
        (replace(cleaned(20, 50), record_count=31), "added records"),
    ],
)
def test_object_below_the_cold_end_that_no_clean_may_write_is_refused(successor: SegmentEntry, why: str) -> None:
    made = manifest(*TEN)
    with pytest.raises(AssertionError, match=why):
        check_change(made, made.replace_segments(TEN[2:5], [successor], {}, new_keys()))


def _add(one: SegmentEntry, current: Manifest, _: Submanifests) -> Manifest:
    return current.add(one)


async def fill(broker: Broker, count: int) -> Manifest:
    written = await broker.take_over(1)
    for each in TEN[:count]:
        written = await broker.manifests.change(PID, TOPIC, 1, partial(_add, each))
    return written


async def replace_in_bucket(broker: Broker, run: Sequence[SegmentEntry], successor: SegmentEntry) -> Manifest:
    numbers = iter(range(100, 200))
    return await broker.manifests.change(
        PID, TOPIC, 1,
        lambda current, subs: current.replace_segments(
            run, [successor], subs, lambda base: submanifest_key(PID, base, 1, f"{next(numbers):032x}")
        ),
    )  # fmt: skip


@in_rig(Rig)
async def test_sub_manifest_of_a_replacement_is_stored_before_its_manifest(rig: Rig) -> None:
    broker = rig.broker(fan=2)
    before = await fill(broker, 8)
    assert before.submanifests
    broker.fail(FaultRule(FaultKind.ERROR, ("put",), key=".sub"))
    with pytest.raises(Unavailable, match="was not stored"):
        await replace_in_bucket(broker, TEN[1:3], cleaned(10, 30))
    broker.fail()
    assert await broker.manifests.load(PID) == before
    written = await replace_in_bucket(broker, TEN[1:3], cleaned(10, 30))
    reader = rig.broker("reader")
    assert await reader.manifests.load(PID) == written
    found = [each async for each in reader.manifests.list_segments(written)]
    assert found == [TEN[0], cleaned(10, 30), *TEN[3:8]]
    assert await reader.manifests.find_segment(written, 25) == cleaned(10, 30)


@in_rig(Rig)
async def test_replaced_objects_are_deleted_after_the_grace_time_and_others_stay(rig: Rig) -> None:
    broker = rig.broker(fan=2)
    before = await fill(broker, 8)
    for each in (*TEN[:8], cleaned(10, 30)):
        await rig.bucket.memory.put(each.key, b"x")
    written = await replace_in_bucket(broker, TEN[1:3], cleaned(10, 30))
    await broker.collector.delete_replaced(before, [(10, 30)])
    assert await broker.collector.delete_expired() == 0
    await rig.clock.sleep(2)
    await broker.collector.delete_expired()
    alive = {key async for key in broker.manifests.list_keys(written)}
    assert {*await rig.keys()} - {f"data/{PID.topic_id}/{PID.partition}/manifest"} == alive
