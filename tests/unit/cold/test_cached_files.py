"""The files of the chunk cache on disk: which ones stay, and which ones go."""

from __future__ import annotations

import pytest

from tiered.cold import cached_files
from tiered.cold.cached_files import KEPT_MS, CachedFile, CachedFiles, digest_of, excess_bytes, parse_name
from tiered.cold.chunks import Chunk
from tiered.ports import Space

FILES = [CachedFile(1_700_000_000_000 + each, 10, digest_of(Chunk("k", each, 1))) for each in range(4)]


def kept(size_max: int = 40, files: list[CachedFile] = FILES) -> CachedFiles:
    made = CachedFiles(size_max)
    for each in files:
        assert made.add(each) is None
    return made


def test_name_tells_all_of_a_file() -> None:
    assert [parse_name(each.name) for each in FILES] == FILES
    assert [parse_name(name) for name in ("part", FILES[0].name + "x", "-", "")] == [None] * 4


def test_chunks_of_other_places_have_other_digests() -> None:
    chunks = [Chunk("k", 1, 23), Chunk("k", 12, 3), Chunk("j", 1, 23), Chunk("k", 1, 24)]
    assert len({digest_of(each) for each in chunks}) == len(chunks)


def test_least_recently_used_files_go_first() -> None:
    files = kept()
    assert files.use(FILES[0].digest) == FILES[0] and files.use("none") is None
    assert files.take_excess(0, size=15) == FILES[1:3]
    assert (files.bytes, len(files)) == (20, 2) and FILES[0].digest in files and FILES[1].digest not in files
    assert files.take_excess(0, size=20) == []


def test_files_go_when_others_need_the_room() -> None:
    files = kept()
    assert files.take_excess(excess=11) == FILES[:2]
    assert files.take_excess(excess=1_000) == FILES[2:] and files.bytes == 0


def test_number_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_files, "FILES_MAX", 4)
    files = kept()
    assert files.take_excess(0) == [] and files.take_excess(0, size=1) == FILES[:1]


def test_file_is_kept_for_a_day() -> None:
    files = kept()
    assert files.take_expired(FILES[0].written_ms + KEPT_MS - 1) == []
    assert files.take_expired(FILES[1].written_ms + KEPT_MS) == FILES[:2]
    assert files.take_expired(FILES[2].written_ms) == FILES[3:], "a file from the future would stay for ever"


def test_file_replaces_one_of_the_same_chunk() -> None:
    files = kept()
    assert files.add(FILES[0]._replace(size=15)) == FILES[0]
    assert files.bytes == 45 and files.take_excess(0) == FILES[1:2]


def test_tenth_of_the_file_system_stays_free() -> None:
    assert excess_bytes(Space(1_000, 100)) == 0
    assert (excess_bytes(Space(1_000, 100), 1), excess_bytes(Space(1_000, 0))) == (1, 100)
    assert not CachedFiles(10).fits(11) and CachedFiles(10).fits(10)
