"""Tests of the keys section of segment objects: it names the keys of the records and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import PID, Rig
from tests.unit.cold.test_cold_cleaner import clean, filled, run, upload
from tests.unit.hot.cleaning import put
from tests.unit.hot.fixtures import NOW, config, open_log
from tiered.cold.layout import SectionKind
from tiered.cold.object_keys import KEYS_MIN, KeysBuilder, ObjectKeys, decode_keys, encode_keys
from tiered.errors import Corrupt
from tiered.hot.aborted_txns import AbortedTxn
from tiered.records.batch import encode_batch
from tiered.records.model import HEADER_BYTES, Codec
from tiered.records.pieces import RECORD_BYTES_MAX
from tiered.records.pure_compact import KEY_ROW_BYTES
from tiered.records.pure_hash import siphash

SEED = b"0123456789abcdef"


def rows_of(offsets: dict[bytes, int], base: int = 0) -> bytes:
    """Returns the rows of keys by their last offsets."""
    rows = [siphash(SEED, key, 1, 3) + (offset - base).to_bytes(4, "big") for key, offset in offsets.items()]
    return b"".join(sorted(rows))


def build(parts: Iterable[bytes], base: int = 0, aborted: Iterable[AbortedTxn] = (), applied_to: int = 9) -> bytes:
    parts = list(parts)
    size = sum(map(len, parts))
    builder = KeysBuilder(SEED, base, size, aborted)
    for part in parts:
        builder.add(part)
    return builder.finish(size, applied_to)


def batch(base: int, *keys: bytes | None, codec: Codec = Codec.NONE, producer: int = -1) -> bytes:
    records = [(NOW, key, b"v", ()) for key in keys]
    return encode_batch(
        records, base_offset=base, codec=codec, producer_id=producer, producer_epoch=0, base_sequence=0,
        transactional=producer >= 0,
    )  # fmt: skip


def test_section_has_the_last_offset_of_each_key_of_any_batch() -> None:
    parts = [batch(50, b"a", b"b", None, b"a"), batch(60, b"c", b"b", codec=Codec.ZSTD), batch(70, b"d", producer=3)]
    section = build(parts, 50)
    found = decode_keys(section, where="x")
    assert found == ObjectKeys(SEED, 9, rows_of({b"a": 53, b"b": 61, b"c": 60, b"d": 70}, 50)) and found.key_count == 4
    assert encode_keys(found) == section


def test_keys_of_aborted_transactions_do_not_count() -> None:
    aborted = AbortedTxn(3, 0, 1, 1)
    found = decode_keys(build([batch(0, b"a", producer=3), batch(5, b"b")], aborted=[aborted]), where="x")
    assert found is not None and found.rows == rows_of({b"b": 5})


def test_object_that_cannot_be_read_as_a_whole_has_no_section() -> None:
    broken = bytearray(batch(0, b"a", codec=Codec.ZSTD))
    broken[HEADER_BYTES] ^= 0xFF
    assert build([bytes(broken), batch(5, b"b")]) == b""
    large = encode_batch([(NOW, b"a", bytes(RECORD_BYTES_MAX), ())], codec=Codec.ZSTD)
    assert build([large, batch(5, b"b")]) == b""


def test_section_that_is_large_for_its_log_is_left_out() -> None:
    keys = [b"%08d" % number for number in range(KEYS_MIN + 1)]
    assert build([batch(0, *keys)]) == b""
    assert len(build([batch(0, *keys[:-1])])) > KEYS_MIN * KEY_ROW_BYTES
    wide = [(NOW, key, b"v" * 200, ()) for key in keys]
    assert build([encode_batch(wide)]), "an eighth part of this log has room for all keys"


def test_section_of_a_newer_program_is_none_and_other_bytes_are_corrupt() -> None:
    section = build([batch(0, b"a", b"b")])
    assert decode_keys(b"\0\2" + section[2:] + b"more", where="x") is None
    for spoiled in (section[:-1], section + b"x", b"\0\0" + section[2:], b"", section[:24] + b"\xff" + section[25:]):
        with pytest.raises(Corrupt, match="where=x"):
            decode_keys(spoiled, where="x")


def test_cleaned_objects_say_their_keys_under_the_seed_of_the_manifest() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        log, cleaner = await filled(), broker.make_cleaner()
        uploaded = await upload(broker, log)
        whole = config(cleanup_policy=("compact",), segment_bytes=1 << 16)
        manifest = (await clean(cleaner, uploaded, settings=whole)).manifest
        assert not uploaded.key_seed and len(manifest.key_seed) == 32
        reader = rig.broker("reader")
        assert (await reader.take_over(1)).key_seed == manifest.key_seed
        seen = set[bytes]()
        for entry in manifest.entries:
            keys = await reader.reader.read_keys(entry)
            assert keys is not None and keys.seed.hex() == manifest.key_seed and keys.applied_to == 60
            assert keys.key_count == entry.record_count
            seen |= {bytes(keys.rows[at : at + 16]) for at in range(0, len(keys.rows), KEY_ROW_BYTES)}
            sections = await reader.reader.read_sections(entry)
            assert sections.lineage, "look-ups read the other sections"
        assert seen == {siphash(bytes.fromhex(manifest.key_seed), b"k%d" % number, 1, 3) for number in range(5)}
        assert await reader.reader.read_keys(uploaded.entries[0]) is None
        put(log, "k1", "later")
        log.roll()
        again = await clean(cleaner, await upload(broker, log))
        assert again.manifest.key_seed == manifest.key_seed

    run(scenario)


def test_object_with_a_section_of_a_newer_program_reads_as_before() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        log = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024))
        for number in range(20):
            put(log, f"k{number}", "v")
        log.roll()
        manifest = (await clean(broker.make_cleaner(), await upload(broker, log))).manifest
        kinds = [ref.kind for ref in manifest.entries[0].sections]
        assert kinds[-1] == SectionKind.KEYS and kinds == sorted(kinds)
        assert await rig.broker("reader").reader.offset_for_timestamp(PID, NOW) is not None

    run(scenario)
