"""Tests of docs/FORMATS.md: it names every field that is written, and every kind of change."""

from __future__ import annotations

import re
import struct
from dataclasses import fields

import orjson
import pytest

from tests.sim.harness.bucket_rules import WRITTEN_ONCE
from tests.sources import ROOT
from tiered.cold.manifest import SegmentEntry, SubmanifestRef
from tiered.coordination.snapshot_stores import GROUP_SNAPSHOTS
from tiered.coordinator import snapshot
from tiered.ids import PartitionId, TopicId
from tiered.metadata import layout
from tiered.metadata.changes import KINDS
from tiered.metadata.image import Image, to_json
from tiered.metadata.layout import Boundary, Entry, Format, SnapshotRef
from tiered.metadata.parts.brokers import BrokerImage
from tiered.metadata.parts.topics import DeletedTopic, PartitionImage, TopicImage
from tiered.producers.states import ProducerStates
from tiered.records.native import crc32c

PAGE = (ROOT / "docs" / "FORMATS.md").read_text()


def part(title: str) -> str:
    """Returns the text below one heading, up to the next of its level or above."""
    level = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert level is not None, f"docs/FORMATS.md has no heading {title!r}"
    rest = PAGE[level.end() :]
    end = re.search(rf"^#{{1,{len(level.group(1))}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def body(sealed: bytes) -> set[str]:
    """Returns the names at the top of an object's body."""
    return set(orjson.loads(sealed)["body"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_change_is_documented_with_its_fields(kind: str) -> None:
    row = re.search(rf"^\| `{kind}` \| ([^|]*) \|", part("Log entries"), re.MULTILINE)
    assert row is not None
    assert re.findall(r"`(\w+)`", row.group(1)) == [field.name for field in fields(KINDS[kind])]


def test_every_documented_kind_exists() -> None:
    assert set(re.findall(r"^\| `(\w+_\w+)` \| `", part("Log entries"), re.MULTILINE)) == set(KINDS)


def test_every_field_of_the_small_objects_is_documented() -> None:
    for title, names in {
        "Metadata": body(layout.encode_format(Format(1, "c", "n"))),
        "Log entries": body(layout.encode_entry(Entry(0, 1, "n", ()))),
        "Snapshots": set(to_json(Image())),
        "The boundary": body(layout.encode_boundary(Boundary((SnapshotRef(1, "k"),)))),
    }.items():
        missing = {name for name in names if f"`{name}`" not in part(title) and f'"{name}"' not in part(title)}
        assert not missing, f"{title} does not say what {missing} are"


@pytest.mark.parametrize("beginning", [*WRITTEN_ONCE, layout.LOG_PREFIX, layout.BOUNDARY_KEY, "data/"])
def test_every_kind_of_object_is_documented(beginning: str) -> None:
    assert re.search(rf"^{re.escape(beginning)}", part("The bucket"), re.MULTILINE)


@pytest.mark.parametrize("table", [BrokerImage, TopicImage, PartitionImage, DeletedTopic])
def test_every_field_of_a_snapshot_is_documented(table: type) -> None:
    for field in fields(table):
        assert f"`{field.name}`" in part("Snapshots"), field.name


@pytest.mark.parametrize("node", [SegmentEntry, SubmanifestRef])
def test_every_field_of_a_manifest_is_documented(node: type) -> None:
    for field in fields(node):
        assert f"`{field.name}`" in part("Partition manifest"), field.name


def test_documented_size_of_a_producer_is_right() -> None:
    said = re.search(r"then (\d+) bytes for each producer", part("One log"))
    assert said is not None
    listed = (1).to_bytes(4, "big") + bytes(int(said.group(1)))
    file = struct.pack(">hI", 1, crc32c(listed)) + listed
    assert ProducerStates.from_snapshot(file, 0).encode_snapshot() == file


def test_documented_positions_of_a_group_image_are_right() -> None:
    page, partition_id = part("Snapshot of groups"), PartitionId(TopicId("A" * 22), 3)
    name = snapshot.SnapshotName(GROUP_SNAPSHOTS, partition_id, 4, 5)
    body = snapshot.encode_snapshot(name, [], 0, 6)
    values = {"partition": 3, "leader epoch": 4, "offset": 5, "number of records": 0, "time of writing": 6}
    for field, value in values.items():
        row = re.search(rf"^\| (\d+)-(\d+) \| int(\d+) {field} \|", page, re.MULTILINE)
        assert row is not None, field
        first, last, bits = map(int, row.groups())
        assert last + 1 - first == bits // 8 and int.from_bytes(body[first : last + 1], "big") == value, field
    said = re.search(r"The record batches begin at byte (\d+)", page)
    assert said is not None and len(body) == int(said.group(1))
    assert f"`{body[:8].decode()}`" in page and int.from_bytes(body[12:16], "big") == crc32c(body[16:])
