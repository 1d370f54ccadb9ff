"""Tests of the pure parts: splits, rounds, bounds in options, Delta actions, versions that belong together."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tiered import jars
from pyspark_tiered.delta import table_form
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.table_form import Advance, FileRun, LoadedFile, SplitOutcome, Stop
from pyspark_tiered.load.rounds import (
    RUNS_MAX,
    ConversionResult,
    ExpiredRange,
    Round,
    find_expired_ranges,
    has_missing_segments,
    next_round,
    select_committable,
)
from pyspark_tiered.log.log_tail import ReadableLog, cut_log, newer_ranges
from pyspark_tiered.log.offsets import EARLIEST, LATEST, Bound, BoundKind, bounds, check_order
from pyspark_tiered.log.plan import MIB, SPLIT_BYTES_MAX, SPLIT_BYTES_MIN, ColdPartition, ColdTopic, splits
from pyspark_tiered.proof.comparison import KEPT_ONCE, FaultyRange
from pyspark_tiered.proof.repair import is_kept_once, leave_lost_records, split_at_log_starts
from pyspark_tiered.session import s3a_settings
from pyspark_tiered.source import STREAM_OPTIONS, check_options
from tiered.cold.manifest import SegmentEntry
from tiered.errors import Refused
from tiered.ids import TopicId

ROOT = Path(__file__).resolve().parents[2]


def entry(base: int, end: int, log_bytes: int) -> SegmentEntry:
    return SegmentEntry(f"key-{base}", base, end, 1, ((1, 0),), 0, 0, end - base, log_bytes, 0, log_bytes, (), 0)


def topic(*sizes: list[tuple[int, int]], log_start: int = 0) -> ColdTopic:
    """Returns a topic whose partitions have segments of these (records, bytes)."""
    partitions = []
    for number, run in enumerate(sizes):
        entries, offset = [], 0
        for records, size in run:
            entries.append(entry(offset, offset + records, size))
            offset += records
        partitions.append(ColdPartition(number, log_start, offset, tuple(entries)))
    return ColdTopic("t", TopicId("id"), tuple(partitions))


def whole(cold: ColdTopic) -> dict[int, tuple[int, int]]:
    return {number: (low, high) for number, low, high, *_ in cold.partitions}


def test_small_segments_are_joined_and_large_ones_split() -> None:
    cold = topic([(10, 32 * MIB)] * 8, [(1000, 1024 * MIB)])
    found = splits(cold, whole(cold), tasks=64)
    assert [(s.partition, s.start, s.end) for s in found[:2]] == [(0, 0, 40), (0, 40, 80)]
    assert [(s.start, s.end) for s in found[2:]] == [(125 * i, 125 * i + 125) for i in range(8)]
    assert {s.log_bytes for s in found} == {128 * MIB}


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 10**6), st.integers(100, 10**9)), max_size=20), min_size=1, max_size=4),
    st.integers(1, 16),
)
def test_splits_cover_each_offset_once_within_their_size(sizes: list[list[tuple[int, int]]], tasks: int) -> None:
    cold = topic(*sizes)
    found = splits(cold, whole(cold), tasks)
    for partition in cold.partitions:
        run = [s for s in found if s.partition == partition.partition]
        assert [s.start for s in run] == [0, *(s.end for s in run[:-1])] if run else partition.cold_end_offset == 0
        assert not run or run[-1].end == partition.cold_end_offset
        for split in run:
            held = [(e.base_offset, e.next_offset) for e in split.entries]
            assert held[0][0] <= split.start < split.end <= held[-1][1]
            assert all(low < split.end and high > split.start for low, high in held)
            assert split.manifest().find_node(split.start) == split.entries[0]
            assert split.log_bytes <= 2 * SPLIT_BYTES_MAX
        if len(run) > 1:
            assert sum(s.log_bytes for s in run) / len(run) >= SPLIT_BYTES_MIN / 2


@pytest.mark.parametrize("size", [3000, 1700])
def test_plan_splits_inside_batches(size: int) -> None:
    """Batches have 100 records of 9 bytes each: a plan does not know where they end."""
    cold = topic([(1000, 9000)] * 3)
    plan = next_round(cold, {}, 1, size)
    assert any(split.end % 100 for split in plan.splits)
    assert [split.start for split in plan.splits] == [0, *(split.end for split in plan.splits[:-1])]
    assert plan.advances == (Advance(0, -1, plan.splits[-1].end),)


def convert_round(plan: Round, stops: Mapping[tuple[int, int], Stop]) -> list[ConversionResult]:
    """Returns the result of each file; `stops` by partition and first offset of the split."""
    results = []
    for planned in plan.files:
        runs, outcomes = [], []
        for split in planned:
            stop = stops.get((split.partition, split.start))
            end = split.end if stop is None else stop.offset
            outcomes.append(SplitOutcome(split.partition, split.start, end, stop))
            if end > split.start:
                runs.append(FileRun(split.partition, end - split.start, split.start, end - 1, 0, 0))
        path = "+".join(f"{split.partition}-{split.start}" for split in planned)
        files = (LoadedFile(path, 1, 0, tuple(runs)),) if runs else ()
        results.append(ConversionResult(files, tuple(outcomes), {}))
    return results


def test_stop_ends_its_partition_without_the_splits_behind_it() -> None:
    cold = topic([(10, 100)] * 3, [(10, 100)] * 3, [(10, 100)] * 3)
    plan = next_round(cold, {1: 10}, tasks=4, split_bytes=100)
    stops = {(0, 10): Stop(0, 14, True, "rot"), (1, 10): Stop(1, 10, True, "rot")}
    taken = select_committable(plan, convert_round(plan, stops))
    assert taken.advances == (Advance(0, -1, 14), Advance(2, -1, 30))
    assert [file.path for file in taken.files] == ["0-0", "0-10", "2-0", "2-10", "2-20"]
    assert [stop.partition for stop in taken.stops] == [0, 1]
    assert next_round(cold, {0: 14, 1: 10, 2: 30}, 4, 100, {0, 1}).splits == ()


def test_small_partitions_share_one_commit_and_few_files() -> None:
    cold = topic(*[[(3, 400)]] * 1000)
    plan = next_round(cold, {}, tasks=2)
    assert (len(plan.advances), plan.bytes_left) == (1000, 0)
    assert [len(file) for file in plan.files] == [RUNS_MAX, RUNS_MAX, RUNS_MAX, 1000 - 3 * RUNS_MAX]
    assert [split.partition for file in plan.files for split in file] == list(range(1000))


def test_only_the_first_split_of_a_partition_shares_a_file() -> None:
    """A stop in an earlier split would leave rows in the file that no commit may name."""
    cold = topic([(10, 10)], [(10, 100), (1, 2)], [(10, 20)], [(10, 300)])
    plan = next_round(cold, {}, tasks=1, split_bytes=100)
    assert [[(s.partition, s.start) for s in file] for file in plan.files[:1]] == [[(0, 0), (2, 0)]]
    assert all(len(file) == 1 for file in plan.files[1:])


def test_stop_in_a_shared_file_keeps_the_runs_of_the_others() -> None:
    cold = topic([(10, 10)], [(10, 10)], [(10, 10)])
    plan = next_round(cold, {1: 4}, tasks=1, split_bytes=100)
    taken = select_committable(
        plan, convert_round(plan, {(1, 4): Stop(1, 4, True, "rot"), (2, 0): Stop(2, 7, True, "rot")})
    )
    assert taken.advances == (Advance(0, -1, 10), Advance(2, -1, 7))
    assert [[run[:4] for run in file.runs] for file in taken.files] == [[(0, 10, 0, 9), (2, 7, 0, 6)]]
    assert [stop.partition for stop in taken.stops] == [1, 2]


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 1000), st.integers(70, 50_000)), max_size=3), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(10_000, 10**6),
)
def test_rounds_load_each_offset_once_within_their_bytes(
    sizes: list[list[tuple[int, int]]], tasks: int, split_bytes: int
) -> None:
    cold = topic(*sizes)
    loaded: dict[int, int] = {}
    while (plan := next_round(cold, loaded, tasks, split_bytes)).files:
        taken = select_committable(plan, convert_round(plan, {}))
        for file in taken.files:
            numbers = [run.partition for run in file.runs]
            assert numbers == sorted(set(numbers))
        spans = sorted((run.partition, run.first_offset, run.last_offset) for file in taken.files for run in file.runs)
        for number, first, last in spans:
            assert first == loaded.get(number, 0)
            loaded[number] = last + 1
        assert [(step.partition, step.end) for step in taken.advances] == sorted(
            {number: loaded[number] for number, *_ in spans}.items()
        )
        assert sum(split.log_bytes for split in plan.splits[:-1]) <= 4 * tasks * split_bytes + 100_000
    assert loaded == {each.partition: each.cold_end_offset for each in cold.partitions if each.cold_end_offset}


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 60)), min_size=1, max_size=3), min_size=1, max_size=8
    ),
    st.integers(1, 4),
    st.integers(1, 80),
    st.data(),
)
def test_rounds_until_no_byte_is_left_cover_every_offset(
    sizes: list[list[tuple[int, int]]], tasks: int, split_bytes: int, data: st.DataObject
) -> None:
    """Also of segments with less than a byte for each offset, as a clean leaves them, and of bounds inside of one."""
    cold = topic(*sizes)
    loaded = {each.partition: data.draw(st.integers(-1, each.cold_end_offset)) for each in cold.partitions}
    while True:
        plan = next_round(cold, loaded, tasks, split_bytes)
        loaded |= {step.partition: step.end for step in plan.advances}
        if not plan.bytes_left:
            break
    assert all(max(loaded[each.partition], 0) == each.cold_end_offset for each in cold.partitions)


def test_bounds_outside_of_the_bucket_are_refused() -> None:
    cold = topic([(10, MIB)], log_start=3)
    with pytest.raises(Refused, match=r"holds \[3, 10\)"):
        splits(cold, {0: (2, 10)}, 1)
    with pytest.raises(Refused, match=r"offsets \[3, 11\)"):
        splits(cold, {0: (3, 11)}, 1)
    assert splits(cold, {0: (5, 5)}, 1) == []


def test_round_takes_the_oldest_records_and_reports_the_rest() -> None:
    cold = topic([(10, 100)] * 6, [(10, 100)] * 6)
    plan = next_round(cold, {1: 10}, tasks=1, split_bytes=100)
    assert [(s.partition, s.start) for s in plan.splits] == [(0, 0), (0, 10), (1, 10), (1, 20)]
    assert plan.advances == (Advance(0, -1, 20), Advance(1, 10, 30))
    assert plan.bytes_left == 700


def test_expired_offsets_are_skipped_and_a_table_ahead_is_refused() -> None:
    cold = topic([(10, 100)], log_start=4)
    assert next_round(cold, {0: 2}, 1).advances == (Advance(0, 2, 10),)
    assert find_expired_ranges(cold, {0: 2}) == [ExpiredRange(0, 2, 4)]
    assert find_expired_ranges(cold, {}) == []
    assert next_round(cold, {0: 10}, 1).splits == ()
    with pytest.raises(Refused, match="only up to 10"):
        next_round(cold, {0: 11}, 1)


def test_plan_is_outdated_if_one_of_its_segments_is_gone() -> None:
    before, after = topic([(10, 100)] * 2), topic([(10, 100)])
    plan = next_round(before, {}, 1)
    assert has_missing_segments(plan.splits, after)
    assert not has_missing_segments(plan.splits, before)


def test_fault_on_both_sides_of_the_log_start_becomes_two() -> None:
    """Below the log start a doubled row is kept once, above it the log gives it again."""
    cold = ColdTopic("t", TopicId("id"), (ColdPartition(0, 50, 100, ()),))
    doubled = FaultyRange(0, 48, 52, "duplicate")
    below, above = doubled._replace(end=50), doubled._replace(start=50)
    elsewhere = FaultyRange(4, 0, 9, "extra")
    assert split_at_log_starts([doubled, elsewhere], cold) == [below, above, elsewhere]
    assert split_at_log_starts([below, above], cold) == [below, above]


def test_extra_rows_are_left_where_a_clean_or_retention_took_records() -> None:
    entries = [entry(base, base + 10, 1) for base in range(10, 60, 10)]
    for cleaned in (1, 3):
        entries[cleaned] = replace(entries[cleaned], cleaned_ms=5)
    newest = ColdTopic("t", TopicId("id"), (ColdPartition(0, 15, 60, tuple(entries)),))
    extra, nowhere = FaultyRange(0, 12, 45, "extra"), FaultyRange(0, -1, 0, "extra")
    others = [FaultyRange(0, 12, 45, kind) for kind in ("missing", "changed", "duplicate", KEPT_ONCE)]
    others += [FaultyRange(0, 52, 55, "extra"), FaultyRange(4, 0, 9, "extra"), nowhere]
    left = [FaultyRange(0, 15, 20, "extra"), FaultyRange(0, 30, 40, "extra")]
    assert leave_lost_records([extra, *others], newest) == [*left, *others]


def test_duplicates_that_the_log_cannot_give_again_are_kept_once() -> None:
    assert is_kept_once(FaultyRange(0, 50, 52, KEPT_ONCE), 10)
    assert is_kept_once(FaultyRange(0, 5, 10, "duplicate"), 10)
    assert not is_kept_once(FaultyRange(0, 10, 12, "duplicate"), 10)
    assert not is_kept_once(FaultyRange(0, 5, 10, "extra"), 10)


def test_whole_topic_is_the_table_up_to_its_bounds_and_then_the_log() -> None:
    log = ReadableLog("id", {0: (10, 100), 1: (0, 5), 2: (7, 7), 3: (0, 4)})
    assert newer_ranges("t", {0: 40, 1: 5, 3: 4}, log) == {0: (40, 100), 1: (0, 0), 2: (7, 7), 3: (0, 0)}
    with pytest.raises(Refused, match="offsets 8 to 9 of t-0 are neither in the table nor in the log"):
        newer_ranges("t", {0: 8}, log)
    with pytest.raises(Refused, match="the table holds t-0 up to offset 101, the log only up to 100"):
        newer_ranges("t", {0: 101}, log)


def cut(tables: list[dict[int, int]], logs: list[tuple[int, int]]) -> tuple[int, dict[int, tuple[int, int]]]:
    """Cuts a table, whose versions and log change with each look. Returns the version, and the newer offsets."""
    looks = iter(logs)

    def look(_: object = None) -> ReadableLog:
        return ReadableLog("id", {0: next(looks)})

    versions = iter(range(len(tables)))
    read = partial(next, versions)
    return cut_log("t", read(), look(), loaded=tables.__getitem__, read=read, look=look)


def test_load_and_retention_between_two_looks_are_no_loss() -> None:
    assert cut([{0: 10}], [(0, 20)]) == (0, {0: (10, 20)})
    assert cut([{0: 10}, {0: 20}], [(15, 30)]) == (1, {0: (20, 30)}), "the table is read again"
    assert cut([{0: 40}], [(0, 20), (0, 50)]) == (0, {0: (40, 50)}), "the log is read again"
    assert cut([{0: 10}, {0: 40}], [(15, 30), (0, 50)]) == (1, {0: (40, 50)})
    with pytest.raises(Refused, match="neither in the table nor in the log"):
        cut([{0: 10}] * 9, [(15, 30)])
    with pytest.raises(Refused, match="the log only up to 20"):
        cut([{0: 40}], [(0, 20)] * 9)


def test_offset_options_as_in_sparks_kafka_source() -> None:
    given_json = {"startingoffsets": '{"t": {"0": 5, "1": -2, "2": -1}}'}
    found = bounds(given_json, "starting", "t", [0, 1, 2], EARLIEST)
    assert found == {0: Bound(BoundKind.OFFSET, 5), 1: EARLIEST, 2: LATEST}
    assert bounds({}, "ending", "t", [0], LATEST) == {0: LATEST}
    assert bounds({"endingoffsets": "latest"}, "ending", "t", [0], LATEST) == {0: LATEST}
    both = {"startingtimestamp": "7", "startingoffsets": "earliest"}
    at_7 = Bound(BoundKind.TIMESTAMP, 7, needs_match=True)
    assert bounds(both, "starting", "t", [0, 1], EARLIEST) == dict.fromkeys([0, 1], at_7)
    both["startingoffsetsbytimestampstrategy"] = "LATEST"
    assert bounds(both, "starting", "t", [0, 1], EARLIEST) == dict.fromkeys([0, 1], at_7._replace(needs_match=False))
    assert bounds({"endingtimestamp": "7"}, "ending", "t", [0], LATEST) == {0: at_7._replace(needs_match=False)}


@pytest.mark.parametrize("kind", [BoundKind.OFFSET, BoundKind.TIMESTAMP])
def test_start_after_the_end_is_refused(kind: BoundKind) -> None:
    check_order("t", {0: Bound(kind, 5), 1: EARLIEST}, {0: Bound(kind, 5), 1: LATEST})
    other = BoundKind.TIMESTAMP if kind is BoundKind.OFFSET else BoundKind.OFFSET
    check_order("t", {0: Bound(kind, 9)}, {0: Bound(other, 5)})
    with pytest.raises(Refused, match=f"t-1 starts at {kind.value} 6, after its end at 5"):
        check_order("t", {0: EARLIEST, 1: Bound(kind, 6)}, {0: LATEST, 1: Bound(kind, 5)})


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("kafka.bootstrap.servers", "here it is `bootstrap`, HOST:PORT of a broker's HTTP"),
        ("subscribe", "here it is `topic`"),
        ("kafka.group.id", "no consumer group"),
        ("endingTimestamp", "it is for batch queries only"),
        ("kafka.linger.ms", "kafka.[*] only for TLS, the login"),
        ("start", "there are store, bootstrap, topic"),
    ],
)
def test_unknown_option_names_the_way_out(option: str, words: str) -> None:
    with pytest.raises(Refused, match=f"unknown option '{option.lower()}'.*{words}"):
        check_options({"topic": "t", "store": "memory://", option: "x"}, STREAM_OPTIONS)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingoffsets", "{"),
        ("startingoffsets", '{"other": {"0": 1}}'),
        ("startingoffsets", '{"t": {"0": -3, "1": 0}}'),
        ("startingoffsets", '{"t": {"0": 1}}'),
        ("startingoffsetsbytimestamp", '{"t": [1]}'),
        ("startingtimestamp", "yesterday"),
    ],
)
def test_invalid_bounds_are_refused_by_the_name_of_the_option(option: str, text: str) -> None:
    with pytest.raises(Refused, match=r"starting(Offsets|Timestamp)"):
        bounds({option: text}, "starting", "t", [0, 1], EARLIEST)


def test_commit_has_its_files_and_then_one_version_per_partition() -> None:
    file = LoadedFile("part.parquet", 99, 5, (FileRun(3, 2, 10, 11, 1_500_999, 2_000_001),))
    add, txn = map(json.loads, table_form.commit_actions("ID", [file], [Advance(3, 10, 12)], 77))
    stats = json.loads(add["add"].pop("stats"))
    assert add == {
        "add": {"path": "part.parquet", "partitionValues": {}, "size": 99, "modificationTime": 5, "dataChange": True}
    }
    assert stats["numRecords"] == 2
    assert stats["minValues"] == {"partition": 3, "offset": 10, "timestamp": "1970-01-01T00:00:01.500Z"}
    assert stats["maxValues"] == {"partition": 3, "offset": 11, "timestamp": "1970-01-01T00:00:02.000Z"}
    assert txn == {"txn": {"appId": "ID/3", "version": 12, "lastUpdated": 77}}
    assert table_form.loaded_offsets({"ID/3": 12, "ID2/3": 9, "other": 1}, "ID") == {3: 12}
    assert table_form.loaded_offsets({"topic-of-today/3": 12, "topic-of-before/3": 9}, "topic-of-today") == {3: 12}


def test_shared_file_has_the_bounds_of_all_its_runs() -> None:
    runs = (FileRun(3, 2, 10, 11, 1_500_999, 2_000_001), FileRun(7, 1, 5, 5, None, None, 1))
    (line,) = table_form.commit_actions("ID", [LoadedFile("p", 99, 5, runs)], [], 77)
    add = json.loads(line)["add"]
    stats = json.loads(add["stats"])
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {"partition": 3, "offset": 5, "timestamp": "1970-01-01T00:00:01.500Z"}
    assert stats["maxValues"] == {"partition": 7, "offset": 11, "timestamp": "1970-01-01T00:00:02.000Z"}
    assert stats["nullCount"] == {"partition": 0, "offset": 0, "timestamp": 1}
    assert json.loads(add["tags"][table_form.RUNS_TAG]) == [[3, 10, 11], [7, 5, 5]]


def test_times_beyond_the_calendar_have_no_statistics() -> None:
    file = LoadedFile("p", 1, 0, (FileRun(0, 1, 0, 0, -(1 << 63), (1 << 63) - 1),))
    stats = json.loads(json.loads(table_form.commit_actions("ID", [file], [], 0)[0])["add"]["stats"])
    assert stats["minValues"] == stats["maxValues"] == {"partition": 0, "offset": 0}


def test_urls_are_translated_for_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert spark_url("s3://bucket/prefix/") == "s3a://bucket/prefix"
    assert spark_url("file:///a%20b") == "file:/a b"
    assert spark_url("warehouse") == f"file:{tmp_path}/warehouse"


@pytest.mark.parametrize("place", ["variables", "services", "profile"])
def test_settings_of_s3_come_from_variables_and_files(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    texts = {
        "variables": "",
        "services": "region = eu-west-1\nservices = ours\n[services ours]\ns3 =\n  endpoint_url = http://x:1\n",
        "profile": "region = eu-west-1\nendpoint_url = http://x:1\n",
    }
    (tmp_path / "config").write_text("[default]\n" + texts[place])
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    if place == "variables":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://x:1")
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
    settings = s3a_settings()
    assert settings["spark.hadoop.fs.s3a.endpoint"] == "http://x:1"
    assert settings["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"
    assert settings["spark.hadoop.fs.s3a.endpoint.region"] == "eu-west-1"


def test_pip_and_maven_install_the_same_versions() -> None:
    pins = dict(
        line.split("==")
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
        if "==" in line
    )
    names = {"m": "http://maven.apache.org/POM/4.0.0"}
    properties = ElementTree.parse(jars.SOURCES / "pom.xml").find("m:properties", names)
    assert properties is not None
    assert properties.findtext("m:spark.version", namespaces=names) == pins["pyspark"]
    assert properties.findtext("m:delta.version", namespaces=names) == pins["delta-spark"]


def test_missing_java_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jars.missing_tools().startswith("Spark needs Java and there is none")
    assert "openjdk" in jars.missing_tools()


@pytest.mark.parametrize(
    ("said", "old"),
    [
        ('openjdk version "17.0.15" 2025-04-15', False),
        ('NOTE: Picked up JDK_JAVA_OPTIONS: -Xmx8g\nopenjdk version "21" 2023-09-19', False),
        ("Picked up JAVA_TOOL_OPTIONS: -XX:TieredStopAtLevel=1\njavac 17.0.15", False),
        ('java version "1.8.0_402"', True),
    ],
)
def test_java_version_is_found_behind_other_output(
    said: str, old: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "java"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'EOF'\n{said}\nEOF\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert ("this one is 8" if old else "") in jars.missing_tools(build=False)
    assert bool(jars.missing_tools(build=False)) == old


def test_jar_builder_has_a_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["jars", "-h"])
    with pytest.raises(SystemExit, match="0"):
        jars.main()
    assert "PROFILE" in capsys.readouterr().out


def test_jars_are_cached_by_the_hash_of_their_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIERED_JARS", str(tmp_path))
    assert jars.cache_folder().parent == tmp_path
    assert jars.cache_folder() != jars.cache_folder(["kafka"])
    jars.cache_folder().mkdir()
    (jars.cache_folder() / "a.jar").touch()
    assert jars.ensure_jars() == [jars.cache_folder() / "a.jar"]
