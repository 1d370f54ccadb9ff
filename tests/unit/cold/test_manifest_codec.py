"""Tests of manifests as bytes: they decode to what was encoded, and all other bytes are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.cold.rig import PID, entry, manifest
from tiered.cold.manifest import Manifest, SubmanifestRef
from tiered.cold.manifest_codec import decode, decode_submanifest, encode, encode_submanifest
from tiered.errors import Corrupt, Refused
from tiered.object_store.envelope import seal

SPILL = SubmanifestRef("data/x.sub", 1, 0, 100, 99, 1000, 10)
MADE = replace(
    manifest(entry(100, 110), entry(110, 120)).adopt_epoch(4),
    nodes=(SPILL, entry(100, 110), entry(110, 120)),
    sequence=12,
    nonce="n",
)


def test_manifests_decode_to_what_was_encoded_and_are_plain_json() -> None:
    data = encode(MADE)
    assert decode(data, "key") == MADE
    body = json.loads(data)["body"]
    assert (body["cold_bytes"], body["segment_count"], body["cold_end_offset"]) == (1200, 12, 120)
    assert body["entries"][0]["key"] == entry(100, 110).key


def test_seed_of_keys_of_an_older_program_is_passed_over() -> None:
    body = json.loads(encode(MADE))["body"]
    assert decode(seal({**body, "key_seed": "0f" * 16}), "key") == MADE


def test_sub_manifests_decode_to_what_was_encoded() -> None:
    nodes = (SPILL, entry(100, 110))
    assert decode_submanifest(encode_submanifest(PID, 1, nodes), "key") == nodes


def test_manifest_with_a_flipped_bit_is_corrupt() -> None:
    data = encode(MADE)
    for at in range(len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 1 << at % 8
        with pytest.raises(Corrupt, match="where=key"):
            decode(bytes(spoiled), "key")


@pytest.mark.parametrize("cut", [0, 1, 20, 100])
def test_cut_off_manifest_is_corrupt(cut: int) -> None:
    with pytest.raises(Corrupt):
        decode(encode(MADE)[:cut], "key")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"format": "x"},
        {"format": 1},
        {"format": 1, "entries": [], "spilled": []},
        {**json.loads(encode(MADE))["body"], "entries": [[]]},
        {**json.loads(encode(MADE))["body"], "spilled": []},
        {**json.loads(encode(MADE))["body"], "cold_end_offset": 7},
    ],
)
def test_valid_document_that_is_no_manifest_is_corrupt(body: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        decode(seal(body), "key")


def test_manifest_of_a_newer_format_is_refused() -> None:
    with pytest.raises(Refused, match="format 3"):
        decode(seal({**json.loads(encode(MADE))["body"], "format": 3}), "key")


def test_manifest_with_a_cleaned_segment_has_format_2_and_decodes() -> None:
    cleaned = replace(MADE, nodes=(SPILL, replace(entry(100, 110), cleaned_ms=7), entry(110, 120)))
    for made in (cleaned, replace(MADE, clean_to=110, cleaned_ms=7), replace(cleaned, clean_to=110, cleaned_ms=7)):
        assert decode(encode(made), "key") == made
        assert json.loads(encode(made))["body"]["format"] == 2
    sub = encode_submanifest(PID, 1, cleaned.nodes)
    assert decode_submanifest(sub, "key") == cleaned.nodes and json.loads(sub)["body"]["format"] == 2


def test_manifest_without_cleaned_segments_has_only_fields_of_format_1() -> None:
    body = json.loads(encode(MADE))["body"]
    assert body["format"] == 1 and not {"clean_to", "cleaned_ms"} & {*body, *body["entries"][0]}


def test_empty_sub_manifest_or_one_with_a_gap_is_corrupt() -> None:
    for nodes in ((), (entry(0, 10), entry(20, 30))):
        with pytest.raises(Corrupt):
            decode_submanifest(encode_submanifest(PID, 1, nodes), "key")


def test_empty_manifest_decodes_to_itself() -> None:
    empty = Manifest("t", PID.topic_id, PID.partition, 3)
    assert decode(encode(empty), "key") == empty
