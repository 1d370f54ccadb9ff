"""docs/FORMATS.md names every field that is written, and no change kind is missing from it."""

from __future__ import annotations

import re
import struct
from dataclasses import fields

import orjson
import pytest

from tests.sources import ROOT
from tiered.cold.manifest import SegmentEntry, Spill
from tiered.hot.producers import ProducerStates
from tiered.metadata import layout
from tiered.metadata.changes import KINDS
from tiered.metadata.image import BrokerImage, DeletedTopic, Image, PartitionImage, TopicImage, to_json
from tiered.metadata.layout import Boundary, Entry, Format, Snapshot
from tiered.records.native import crc32c

PAGE = (ROOT / "docs" / "FORMATS.md").read_text()


def part(title: str) -> str:
    """The text below one heading, up to the next of its level or above."""
    level = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert level is not None, f"docs/FORMATS.md has no heading {title!r}"
    rest = PAGE[level.end() :]
    end = re.search(rf"^#{{1,{len(level.group(1))}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def body(sealed: bytes) -> set[str]:
    """The names at the top of an object's body."""
    return set(orjson.loads(sealed)["body"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_change_stands_there_with_exactly_its_fields(kind: str) -> None:
    row = re.search(rf"^\| `{kind}` \| ([^|]*) \|", part("Log entries"), re.MULTILINE)
    assert row is not None
    assert re.findall(r"`(\w+)`", row.group(1)) == [field.name for field in fields(KINDS[kind])]


def test_no_kind_stands_there_that_is_not() -> None:
    assert set(re.findall(r"^\| `(\w+_\w+)` \| `", part("Log entries"), re.MULTILINE)) == set(KINDS)


def test_every_field_of_the_small_objects_stands_there() -> None:
    for title, names in {
        "Metadata": body(layout.encode_format(Format(1, "c", "n"))),
        "Log entries": body(layout.encode_entry(Entry(0, 1, "n", ()))),
        "Snapshots": set(to_json(Image())),
        "The boundary": body(layout.encode_boundary(Boundary((Snapshot(1, "k"),)))),
    }.items():
        missing = {name for name in names if f"`{name}`" not in part(title) and f'"{name}"' not in part(title)}
        assert not missing, f"{title} does not say what {missing} are"


@pytest.mark.parametrize("table", [BrokerImage, TopicImage, PartitionImage, DeletedTopic])
def test_every_field_of_a_snapshots_tables_stands_there(table: type) -> None:
    for field in fields(table):
        assert f"`{field.name}`" in part("Snapshots"), field.name


@pytest.mark.parametrize("node", [SegmentEntry, Spill])
def test_every_field_of_a_manifests_nodes_stands_there(node: type) -> None:
    for field in fields(node):
        assert f"`{field.name}`" in part("Partition manifest"), field.name


def test_the_size_of_a_producer_is_what_the_page_says() -> None:
    said = re.search(r"then (\d+) bytes for each producer", part("One log"))
    assert said is not None
    listed = (1).to_bytes(4, "big") + bytes(int(said.group(1)))
    file = struct.pack(">hI", 1, crc32c(listed)) + listed
    assert ProducerStates.from_snapshot(file, 0).snapshot() == file
