"""Tests of docs/internals/formats.md: it names every field that is written, and every kind of change."""

from __future__ import annotations

import re
import struct
from dataclasses import fields

import orjson
import pytest

from pyspark_tiered.proof import erasures, last_verify
from tests.sim.harness.bucket_rules import WRITTEN_ONCE
from tests.sources import ROOT
from tiered.cold import layout as cold_layout
from tiered.cold import manifest_codec
from tiered.cold.manifest import SegmentEntry, SubmanifestRef
from tiered.coordination.snapshot_stores import GROUP_SNAPSHOTS
from tiered.coordinator import snapshot
from tiered.durability import adopted_logs, data_directory, move_plan
from tiered.ids import PartitionId, TopicId
from tiered.metadata import layout
from tiered.metadata.changes import KINDS
from tiered.metadata.features import FIELDS_SINCE, HIGHEST_METADATA_VERSION, KEYS_SINCE, NAMES_SINCE
from tiered.metadata.image import Image, to_json
from tiered.metadata.layout import Boundary, Entry, Format, SnapshotRef
from tiered.metadata.parts.brokers import BrokerImage
from tiered.metadata.parts.topics import DeletedTopic, PartitionImage, TopicImage
from tiered.object_store import encrypted_object
from tiered.producers.states import ProducerStates
from tiered.records.native import crc32c
from tiered.wal import layout as wal_layout

GATES = "Versions and levels"
PAGE = (ROOT / "docs" / "internals" / "formats.md").read_text()


def part(title: str) -> str:
    """Returns the text below one heading, up to the next of its level or above."""
    level = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert level is not None, f"docs/internals/formats.md has no heading {title!r}"
    rest = PAGE[level.end() :]
    end = re.search(rf"^#{{1,{len(level.group(1))}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def body(sealed: bytes) -> set[str]:
    """Returns the names at the top of an object's body."""
    return set(orjson.loads(sealed)["body"])


@pytest.mark.parametrize(
    ("name", "newest"),
    [
        ("encrypted object", encrypted_object.VERSION),
        ("cold segment", cold_layout.FOOTER_VERSION),
        ("partition manifest", manifest_codec.FORMAT),
        ("`meta/FORMAT`", layout.FORMAT_VERSION),
        (
            "log entries",
            max(*KEYS_SINCE.values(), *(level for each in FIELDS_SINCE.values() for level in each.values())),
        ),
        ("settings and client quotas", max(NAMES_SINCE.values())),
        ("requests that brokers forward", HIGHEST_METADATA_VERSION),
        ("window and fence", wal_layout.VERSION),
        ("snapshot of groups", snapshot.TRANSACTIONAL_VERSION),
        ("snapshot of transactional ids", snapshot.VERSION),
        ("`meta.properties`", int(data_directory.VERSION)),
        ("`adopted`", adopted_logs.VERSION),
        ("`moves`", move_plan.VERSION),
        ("`_erased`", erasures.VERSION),
        ("`_verified`", last_verify.VERSION),
    ],
)
def test_newest_version_of_every_format_is_documented_with_its_gate(name: str, newest: int) -> None:
    [row] = re.findall(rf"^\| {re.escape(name)}[^|]*\|[^|]*\| (?:level )?(\d+) \| [^|]+ \|$", part(GATES), re.MULTILINE)
    assert int(row) == newest


def test_every_name_with_a_level_is_documented() -> None:
    found = re.search(r"These names are of level 1: (.*?)\. A broker", part(GATES), re.DOTALL)
    assert found is not None and {*re.findall(r"`([^`]+)`", found[1])} == NAMES_SINCE.keys()


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
