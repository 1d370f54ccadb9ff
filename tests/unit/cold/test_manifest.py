"""Tests of the manifest as a value: find, add, trim, spill, and the rules that no change may break."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.cold.rig import entry, manifest
from tiered.cold.manifest import (
    Manifest,
    ManifestNode,
    SegmentEntry,
    SubmanifestNeeded,
    SubmanifestRef,
    check_change,
    epoch_at,
    find_node,
)

FOUR = manifest(entry(0, 10), entry(10, 20), entry(20, 35), entry(35, 40))


def pack_all(made: Manifest, fan: int) -> tuple[Manifest, dict[str, tuple[ManifestNode, ...]]]:
    """Returns the manifest after every spill with a fan of `fan`, and the sub-manifests by key."""
    submanifests: dict[str, tuple[ManifestNode, ...]] = {}
    while (run := made.find_pack_range(fan)) is not None:
        key = f"sub-{run.level}-{run.nodes[0].base_offset}"
        submanifests[key] = run.nodes
        made = made.pack(run, key)
    return made, submanifests


def leaves(nodes: tuple[ManifestNode, ...], submanifests: dict[str, tuple[ManifestNode, ...]]) -> list[SegmentEntry]:
    found: list[SegmentEntry] = []
    for node in nodes:
        found += leaves(submanifests[node.key], submanifests) if isinstance(node, SubmanifestRef) else [node]
    return found


@pytest.mark.parametrize(("offset", "base"), [(0, 0), (9, 0), (10, 10), (34, 20), (39, 35)])
def test_every_cold_offset_is_found_in_one_segment(offset: int, base: int) -> None:
    found = FOUR.find_node(offset)
    assert found is not None and found.base_offset == base


def test_nothing_is_found_outside_the_cold_range() -> None:
    assert FOUR.find_node(-1) is None
    assert FOUR.find_node(40) is None
    assert FOUR.advance_start(15, {}).find_node(14) is None
    assert FOUR.advance_start(15, {}).find_node(15) == FOUR.nodes[1]


def test_epoch_of_an_offset_comes_from_the_lineage() -> None:
    one = replace(entry(10, 20, epoch=5), lineage=((3, 8), (5, 15)))
    assert [epoch_at(one, offset) for offset in (10, 14, 15, 19)] == [3, 3, 5, 5]


def test_add_moves_the_cold_end_and_a_repeated_add_changes_nothing() -> None:
    more = FOUR.add(entry(40, 50))
    assert (more.cold_end_offset, more.cold_bytes, more.segment_count) == (50, 500, 5)
    assert more.add(entry(40, 50)) is more
    check_change(FOUR, more)


def test_log_start_drops_whole_segments_and_keeps_its_own() -> None:
    cut = FOUR.advance_start(25, {})
    assert [node.base_offset for node in cut.nodes] == [20, 35]
    assert (cut.log_start_offset, cut.cold_bytes, cut.cold_end_offset) == (25, 200, 40)
    assert cut.advance_start(25, {}) is cut and cut.advance_start(3, {}) is cut
    check_change(FOUR, cut)


def test_log_start_above_the_cold_end_empties_the_manifest() -> None:
    cut = FOUR.advance_start(77, {})
    assert (cut.nodes, cut.log_start_offset, cut.cold_end_offset) == ((), 77, 77)
    check_change(FOUR, cut)


def test_manifest_of_a_million_segments_is_small_and_finds_each() -> None:
    made, submanifests = manifest(), {}
    for i in range(1000):
        made = made.add(entry(10 * i, 10 * i + 10))
        while (run := made.find_pack_range(4)) is not None:
            key = f"sub-{run.level}-{run.nodes[0].base_offset}"
            submanifests[key] = run.nodes
            made = made.pack(run, key)
        assert made.find_fault() == ""
    assert len(made.nodes) < 2 * 4 * 5
    assert (made.segment_count, made.cold_bytes) == (1000, 100_000)
    assert [one.base_offset for one in leaves(made.nodes, submanifests)] == list(range(0, 10_000, 10))
    for offset in (0, 17, 4999, 9999):
        node = made.find_node(offset)
        while isinstance(node, SubmanifestRef):
            node = find_node(submanifests[node.key], offset)
        assert node is not None and node.base_offset <= offset < node.next_offset


@pytest.mark.parametrize("start", [1, 10, 11, 155, 160, 200, 333, 400])
def test_trim_with_sub_manifests_equals_trim_without(start: int) -> None:
    flat = manifest(*(entry(10 * i, 10 * i + 10, size=i) for i in range(40)))
    made, submanifests = pack_all(flat, 2)
    cut, wanted = made.advance_start(start, submanifests), flat.advance_start(start, {})
    check_change(made, cut)
    assert cut.cold_bytes == wanted.cold_bytes
    assert cut.segment_count == wanted.segment_count
    alive = [one for one in leaves(cut.nodes, submanifests) if one.next_offset > start]
    assert alive == list(wanted.nodes)
    assert cut.advance_start(start, submanifests) is cut


def test_log_start_inside_a_sub_manifest_needs_only_its_contents() -> None:
    made, _ = pack_all(manifest(*(entry(10 * i, 10 * i + 10) for i in range(8))), 2)
    first = made.nodes[0]
    assert isinstance(first, SubmanifestRef)
    with pytest.raises(SubmanifestNeeded) as wanted:
        made.advance_start(15, {})
    assert wanted.value.ref == first
    assert made.advance_start(first.next_offset, {}).nodes == made.nodes[1:]


@pytest.mark.parametrize(
    "broken",
    [
        replace(FOUR, cold_end_offset=35, nodes=FOUR.nodes[:3]),
        replace(FOUR, leader_epoch=0),
        replace(FOUR.advance_start(10, {}), log_start_offset=0),
        replace(FOUR, nodes=(FOUR.nodes[0], *FOUR.nodes[2:])),
        replace(FOUR, nodes=(*FOUR.nodes, entry(38, 45)), cold_end_offset=45),
        replace(FOUR, nodes=(*FOUR.nodes[:3], entry(35, 40, epoch=2))),
        replace(FOUR, partition=9),
    ],
    ids=["end back", "epoch back", "start back", "hole", "overlap", "other bytes", "other partition"],
)
def test_no_change_breaks_the_rules_of_a_manifest(broken: Manifest) -> None:
    with pytest.raises(AssertionError):
        check_change(FOUR, broken)
