"""Tests of the cleaning of Delta's log: what goes by its retention, and that all versions within it can be read."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_tiered.delta import delta_state
from pyspark_tiered.delta.log_cleanup import (
    DAY_MS,
    RETENTION_MS,
    choose_expired,
    cutoff_ms,
    growing_times,
    parse_interval,
)
from pyspark_tiered.delta.log_folder import LOG, open_folder
from pyspark_tiered.delta.orphans import StoredFile
from pyspark_tiered.delta.table_form import Advance
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.load.native_table import NativeTable
from tests.spark import filling
from tests.spark.typed_site import Site, encode
from tiered.errors import Refused

TOPIC = filling.topic_id(1)
HOUR = {"delta.logRetentionDuration": "interval 1 hours"}


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("interval 30 days", 30 * DAY_MS),
        ("2 weeks", 14 * DAY_MS),
        ("INTERVAL  1 day 12 hours", DAY_MS * 3 // 2),
        ("interval 90 minutes 1 second 5 milliseconds", 5_401_005),
        ("interval 1 month", None),
        ("interval -1 days", None),
        ("", None),
    ],
)
def test_intervals_are_those_of_spark(text: str, duration_ms: int | None) -> None:
    assert parse_interval(text) == duration_ms


def test_cutoff_is_the_start_of_a_day() -> None:
    now_ms = 100 * DAY_MS + 5
    assert cutoff_ms({}, now_ms) == 100 * DAY_MS - RETENTION_MS
    assert cutoff_ms(HOUR, now_ms) == 99 * DAY_MS
    assert cutoff_ms({**HOUR, "delta.enableExpiredLogCleanup": "False"}, now_ms) is None
    assert cutoff_ms({"delta.logRetentionDuration": "interval 1 month"}, now_ms) is None


def stored(times: Mapping[int, int], checkpoints: Mapping[int, int]) -> list[StoredFile]:
    """Returns commits by their times, and checkpoints by their number of parts."""
    files = [StoredFile(delta_state.commit_name(version), at_ms) for version, at_ms in times.items()]
    for version, parts in checkpoints.items():
        names = [f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
        names = names if parts > 1 else [delta_state.checkpoint_name(version)]
        files += [StoredFile(name, times[version] + 1) for name in names]
    return sorted(files)


def kept_versions(files: list[StoredFile], before_ms: int) -> list[int]:
    expired = choose_expired(iter(files), before_ms)
    return delta_state.commit_versions(each.name for each in files if each.name not in expired)


def test_log_is_kept_from_the_checkpoint_below_the_newest_expired_commit() -> None:
    files = stored({version: version * 10 for version in range(26)}, {10: 1, 20: 2})
    assert kept_versions(files, 5) == list(range(26)), "no checkpoint has expired"
    assert kept_versions(files, 99) == list(range(26))
    assert kept_versions(files, 100) == list(range(10, 26))
    assert kept_versions(files, 199) == list(range(10, 26)), "versions 10 to 19 are read from checkpoint 10"
    assert kept_versions(files, 200) == list(range(20, 26))
    assert kept_versions(files, 10_000) == list(range(20, 26)), "only below a checkpoint"
    whole = [each for each in files if ".0000000002.0000000002." not in each.name]
    assert kept_versions(whole, 10_000) == list(range(10, 26)), "a part of checkpoint 20 is missing"


def test_commit_that_gives_later_ones_their_times_is_kept() -> None:
    times = {0: 0, 1: 5, 2: 10, 3: 7, 4: 8, 5: 14, 6: 15}
    files = stored(times, dict.fromkeys(times, 1))
    assert growing_times(files) == [(0, 0), (1, 5), (2, 10), (3, 11), (4, 12), (5, 14), (6, 15)]
    assert kept_versions(files, 9) == [1, 2, 3, 4, 5, 6]
    for before_ms in (10, 11):
        assert kept_versions(files, before_ms) == [2, 3, 4, 5, 6], "version 3 or 4 has its time from version 2"
    assert kept_versions(files, 12) == kept_versions(files, 13) == [4, 5, 6]
    assert kept_versions(files, 14) == [5, 6]


def test_other_files_of_the_log_follow_their_versions() -> None:
    names = [
        "00000000000000000000.00000000000000000009.compacted.json",
        "00000000000000000005.00000000000000000012.compacted.json",
        "00000000000000000003.crc",
        "00000000000000000010.crc",
        "_last_checkpoint",
        "foreign.txt",
    ]
    files = sorted(stored({n: n for n in range(12)}, {5: 1, 10: 1}) + [StoredFile(name, 0) for name in names])
    gone = [delta_state.commit_name(version) for version in range(10)]
    gone += [delta_state.checkpoint_name(5), names[0], names[2]]
    assert choose_expired(files, 11) == sorted(gone)


def test_times_mean_the_same_versions_after_a_cleaning() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        count = rng.randrange(1, 60)
        times, at_ms = {}, 0
        for version in range(count):
            at_ms = max(at_ms + rng.choice([-50, 0, 1, 10, 100]), 0)
            times[version] = at_ms
        files = stored(times, {each: rng.choice([1, 1, 2]) for each in range(count) if rng.random() < 0.2})
        before = growing_times(files)
        cutoff = rng.randrange(max(times.values()) + 50)
        expired = choose_expired(files, cutoff)
        left = [each for each in files if each.name not in expired]
        after = growing_times(left)
        for at_ms in range(cutoff, before[-1][1] + 2):
            found = [[version for version, time_ms in times if time_ms <= at_ms][-1:] for times in (before, after)]
            assert found[0] == found[1], f"seed {seed}: another version at {at_ms}"
        oldest, names = after[0][0], [each.name for each in left]
        assert (
            oldest == 0
            or delta_state.newest_checkpoint(name for name in names if int(name[:20]) == oldest)[0] == oldest
        )


def set_properties(table: NativeTable, properties: Mapping[str, str]) -> None:
    """Sets properties as another program does."""
    state = table.snapshot().state
    metadata = {**state.metadata, "configuration": {**state.properties(), **properties}}
    line = json.dumps({"metaData": metadata}).encode()
    assert table.folder.create(f"{LOG}/{delta_state.commit_name(state.version + 1)}", line)


def age(root: Path, days: int = 40) -> None:
    """Makes all files of a log old."""
    at = time.time() - days * 24 * 3600
    for path in (root / LOG).iterdir():
        os.utime(path, (at, at))


def test_native_commits_clean_the_log(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = NativeTable(f"file:{root}", "t", TOPIC)
    for end in range(15):
        assert table.commit([], [Advance(0, end - 1, end)])
        age(root)
    reader = TableLog(open_folder(f"file:{root}"))
    assert reader.read().version == 14
    for end in range(15, 26):
        assert table.commit([], [Advance(0, end - 1, end)])
    names = os.listdir(root / LOG)
    assert delta_state.commit_versions(names) == list(range(10, 26))
    assert delta_state.newest_checkpoint(names)[0] == 20 and delta_state.checkpoint_name(10) in names
    assert (reader.read().version, reader.read().versions()) == (25, {f"{TOPIC}/0": 25})
    fresh = TableLog(open_folder(f"file:{root}"))
    for version in range(10, 26):
        assert fresh.read_version(version).versions() == {f"{TOPIC}/0": version}
    with pytest.raises(Refused, match="is gone: Delta's log cleanup"):
        fresh.read_version(9)
    assert table.check_sound() == {0: 25}


def test_reader_far_behind_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table, late = (NativeTable(f"file:{root}", "t", TOPIC) for _ in range(2))
    for end in range(3):
        assert table.commit([], [Advance(0, end - 1, end)])
    assert late.loaded_offsets() == {0: 2}
    set_properties(table, HOUR)
    for end in range(3, 25):
        assert table.commit([], [Advance(0, end - 1, end)])
        age(root)
    assert table.commit([], [Advance(0, 24, 25)])
    assert delta_state.commit_versions(os.listdir(root / LOG))[0] == 10
    # A cleaning that was interrupted, or that goes on: the commit of this reader is there, and the next ones are not.
    (root / LOG / delta_state.commit_name(2)).write_bytes(b"")
    assert late.loaded_offsets() == {0: 25}
    assert late.commit([], [Advance(0, 25, 26)])


def test_log_is_not_cleaned_if_its_properties_forbid_it(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = NativeTable(f"file:{root}", "t", TOPIC)
    assert table.commit([], [Advance(0, -1, 0)])
    set_properties(table, {"delta.enableExpiredLogCleanup": "false"})
    for end in range(1, 25):
        assert table.commit([], [Advance(0, end - 1, end)])
        age(root)
    assert delta_state.commit_versions(os.listdir(root / LOG)) == list(range(26))


def test_fast_clock_of_a_loader_deletes_nothing_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the store says how old a file is."""
    root = tmp_path / "t"
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 50 * 24 * 3600 * 10**9)
    table = NativeTable(f"file:{root}", "t", TOPIC)
    for end in range(22):
        assert table.commit([], [Advance(0, end - 1, end)])
    assert delta_state.commit_versions(os.listdir(root / LOG)) == list(range(22))
    part = root / "part-shared-00002-b3c1f0a2-0000-4000-8000-000000000000.zstd.parquet"
    part.touch()
    table.orphans_looked_for_ms = 0
    assert table.remove_orphans() == 0 and part.exists(), "a load in flight may commit it"


def test_logs_of_typed_tables_and_dead_letters_are_cleaned(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write([*encode({"id": 0}), b"no JSON"])
    site.load()
    for table in (site.typed(), site.dead()):
        with closing(table):
            set_properties(table, {"delta.checkpointInterval": "3"})
    with closing(NativeTable(f"file:{site.warehouse}/t", "t", TOPIC)) as raw:
        set_properties(raw, {"delta.checkpointInterval": "3"})
    for number in range(1, 14):
        for name in ("t", "t_typed", "t__dead"):
            age(Path(site.warehouse, name))
        site.write([*encode({"id": number}), b"no JSON"])
        site.load()
    for name in ("t", "t_typed", "t__dead"):
        kept = delta_state.commit_versions(os.listdir(Path(site.warehouse, name, LOG)))
        assert 0 < len(kept) <= 14 and kept[0] > 0, name
    site.check_offsets()
    assert site.verify().ok
