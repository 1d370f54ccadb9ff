"""Tests of the keys and the footer of a cold segment object: written values are read back, and damaged ones are
refused."""

from __future__ import annotations

import struct

import pytest

from tests.unit.cold.rig import PID
from tiered.cold.layout import (
    FOOTER_BYTES_MAX,
    ObjectName,
    SectionKind,
    SegmentFacts,
    build_trailer,
    manifest_key,
    parse_footer,
    parse_key,
    partition_prefix,
    segment_key,
    submanifest_key,
)
from tiered.errors import Corrupt, Refused
from tiered.ids import PartitionId, TopicId, decode_uuid
from tiered.records.native import crc32c

UNIQUE = "0123456789abcdef0123456789abcdef"
FACTS = SegmentFacts(100, 200, 1_700_000_000_000, 1_700_000_000_999, 97, 5000, 0xDEADBEEF)
SECTIONS = {
    SectionKind.OFFSET_INDEX: b"o" * 16,
    SectionKind.TXN_INDEX: b"",
    SectionKind.LINEAGE: b"0\n1\n4 0\n",
}


def test_keys_sort_by_offset_and_name_their_segment() -> None:
    key = segment_key(PID, 42, 7, UNIQUE)
    assert key == f"data/{PID.topic_id}/3/00000000000000000042-0000000007-{UNIQUE}.seg"
    assert parse_key(key) == ObjectName(PID, 42, 7, UNIQUE, "seg")
    assert parse_key(submanifest_key(PID, 42, 7, UNIQUE)) == ObjectName(PID, 42, 7, UNIQUE, "sub")
    assert segment_key(PID, 9, 9, UNIQUE) < segment_key(PID, 10, 0, UNIQUE)
    assert key.startswith(partition_prefix(PID)) and manifest_key(PID).startswith(partition_prefix(PID))


@pytest.mark.parametrize(
    "key",
    [
        manifest_key(PID),
        f"data/../3/00000000000000000042-0000000007-{UNIQUE}.seg",
        f"data/{PID.topic_id}/3/42-7-{UNIQUE}.seg",
        f"data/{PID.topic_id}/3/00000000000000000042-0000000007-{UNIQUE}.seg\n",
        "meta/FORMAT",
    ],
)
def test_unknown_keys_are_no_garbage(key: str) -> None:
    assert parse_key(key) is None


def test_footer_is_read_from_the_last_bytes_alone() -> None:
    tail, refs = build_trailer(PID, 7, FACTS, SECTIONS)
    footer = parse_footer(PID, tail[-FOOTER_BYTES_MAX:], FACTS.log_bytes + len(tail), where="x")
    assert (footer.partition, footer.leader_epoch, footer.facts, footer.sections) == (PID, 7, FACTS, refs)
    assert [ref.kind for ref in refs] == [SectionKind.OFFSET_INDEX, SectionKind.LINEAGE]
    first = refs[0]
    assert (first.position, first.length, first.crc) == (FACTS.log_bytes, 16, crc32c(b"o" * 16))


def test_any_flipped_bit_of_the_footer_is_corrupt() -> None:
    tail, refs = build_trailer(PID, 7, FACTS, SECTIONS)
    begin = refs[-1].position + refs[-1].length - FACTS.log_bytes
    for bit in range(8 * begin, 8 * len(tail)):
        spoiled = bytearray(tail)
        spoiled[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            parse_footer(PID, spoiled, FACTS.log_bytes + len(tail), where="x")


@pytest.mark.parametrize("kept", [0, 1, 15, 16, 100])
def test_cut_off_object_has_no_footer(kept: int) -> None:
    tail, _ = build_trailer(PID, 7, FACTS, SECTIONS)
    with pytest.raises(Corrupt):
        parse_footer(PID, tail[:kept], FACTS.log_bytes + kept, where="x")


def test_footer_of_another_partition_or_size_is_corrupt() -> None:
    tail, _ = build_trailer(PID, 7, FACTS, SECTIONS)
    other = PartitionId(TopicId(PID.topic_id), 4)
    with pytest.raises(Corrupt, match="another object"):
        parse_footer(other, tail, FACTS.log_bytes + len(tail), where="x")
    with pytest.raises(Corrupt, match="does not reach"):
        parse_footer(PID, tail, FACTS.log_bytes + len(tail) + 1, where="x")


def test_footer_of_a_newer_version_is_refused() -> None:
    tail, _ = build_trailer(PID, 7, FACTS, SECTIONS)
    newer = bytearray(tail)
    newer[-18:-16] = (2).to_bytes(2, "big")
    length = int.from_bytes(tail[-12:-8], "big")
    newer[-16:-12] = crc32c(newer[-length:-16]).to_bytes(4, "big")
    with pytest.raises(Refused, match="version 2"):
        parse_footer(PID, newer, FACTS.log_bytes + len(tail), where="x")


def test_object_bytes_equal_those_of_the_formats_document() -> None:
    tail, _ = build_trailer(PID, 7, FACTS, SECTIONS)
    lineage = SECTIONS[SectionKind.LINEAGE]
    table, facts, end = tail[-144:-96], tail[-96:-16], tail[-16:]
    assert tail[:-144] == b"o" * 16 + lineage
    assert struct.unpack(">HHIQQHHIQQ", table) == (
        *(1, 0, crc32c(b"o" * 16), 5000, 16),
        *(5, 0, crc32c(lineage), 5016, len(lineage)),
    )
    assert facts[:16] == decode_uuid(PID.topic_id)
    assert struct.unpack(">iiqqqqqQIHH", facts[16:]) == (
        *(3, 7, 100, 200, 1_700_000_000_000, 1_700_000_000_999, 97, 5000, 0xDEADBEEF),
        *(2, 1),
    )
    assert struct.unpack(">II8s", end) == (crc32c(table + facts), 144, b"TIEREDSG")
    assert FOOTER_BYTES_MAX == 480
