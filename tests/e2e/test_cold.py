"""Tests of `tiered cold`, which reads the bucket without a broker, and its errors for a directory that is no bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.serving import ServeProcess, run_tiered

SOON = ("-c", "tiered.upload.max.lag.ms=1", "-c", "log.retention.check.interval.ms=20")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns a bucket with the topics `letters` (cold) and `empty`, and no broker."""
    root = tmp_path_factory.mktemp("cold")
    url = f"file://{root}/bucket"
    with ServeProcess(root / "data", "--store", url, *SOON) as broker:
        broker.create_topic("letters")
        broker.create_topic("empty")
        broker.produce("letters", *"abcdef")
        broker.wait_for_offset("letters", "cold_end_offset", 6)
    return url


def test_ls_lists_partitions_and_segments(store: str) -> None:
    listed = run_tiered("cold", "ls", "--store", store, "--format", "json")
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(row["topic"], row["partition"], row["cold_end_offset"]) for row in rows] == [
        ("empty", 0, 0),
        ("letters", 0, 6),
    ]
    segments = run_tiered("cold", "ls", "--store", store, "--topic", "letters").stdout.splitlines()
    assert segments[0].split()[:4] == ["PARTITION", "BASE-OFFSET", "NEXT-OFFSET", "RECORDS"]
    assert segments[1].split()[:4] == ["0", "0", "6", "6"] and segments[1].endswith(".seg")


def test_cat_prints_records_from_an_offset_on(store: str) -> None:
    lines = run_tiered("cold", "cat", "--store", store, "--topic", "letters", "--offset", "4").stdout.splitlines()
    assert [line.split("\t")[1:2] + line.split("\t")[3:] for line in lines] == [["4", "-", '"e"'], ["5", "-", '"f"']]
    whole = run_tiered("cold", "cat", "--store", store, "--topic", "letters", "--max", "1", "--format", "json").stdout
    record = json.loads(whole)
    assert (record["partition"], record["offset"], record["key"], record["value"]) == (0, 0, None, '"a"')


def test_empty_topic_prints_nothing(store: str) -> None:
    assert run_tiered("cold", "cat", "--store", store, "--topic", "empty").stdout == ""
    assert run_tiered("cold", "ls", "--store", store, "--topic", "empty").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--topic", "none"), "there is no topic none in file:///"),
        (("--topic", "letters", "--partition", "5"), "letters has partitions 0 to 0, not 5"),
        (("--topic", "letters", "--offset", "-1"), "tiered: argument --offset: '-1' is not a number from 0 on"),
        (("--topic", "letters", "--offset", "7"), "offset 7 of letters-0 is not in the bucket, which holds 0 to 6"),
    ],
)
def test_missing_topic_or_bucket_is_a_one_line_error(store: str, arguments: tuple[str, ...], words: str) -> None:
    refused = run_tiered("cold", "cat", "--store", store, *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 1 and words in refused.stderr


def test_reader_creates_no_directory(tmp_path: Path) -> None:
    refused = run_tiered("cold", "ls", "--store", f"file://{tmp_path}/typo")
    assert refused.returncode == 2 and "no such directory" in refused.stderr
    assert not (tmp_path / "typo").exists()


def test_damaged_object_is_an_error_that_names_it(store: str, tmp_path: Path) -> None:
    listed = run_tiered("cold", "ls", "--store", store, "--topic", "letters", "--format", "json")
    key = json.loads(listed.stdout)["key"]
    segment = Path(store.removeprefix("file://")) / key
    whole = segment.read_bytes()
    segment.write_bytes(whole[:80] + bytes([whole[80] ^ 1]) + whole[81:])
    try:
        failed = run_tiered("cold", "cat", "--store", store, "--topic", "letters")
    finally:
        segment.write_bytes(whole)
    assert failed.returncode == 1 and key in failed.stderr and "Traceback" not in failed.stderr


def test_verify_finds_a_missing_object(store: str) -> None:
    whole = run_tiered("cold", "verify", "--store", store, "--read")
    assert (whole.returncode, whole.stderr) == (0, "")
    assert whole.stdout.splitlines()[-2].startswith("1 segments (") and "0 objects are missing" in whole.stdout
    key = json.loads(run_tiered("cold", "ls", "--store", store, "--topic", "letters", "--format", "json").stdout)["key"]
    segment = Path(store.removeprefix("file://")) / key
    away = segment.rename(segment.with_name("away"))
    try:
        failed = run_tiered("cold", "verify", "--store", store, "--topic", "letters", "--format", "json")
        text = run_tiered("cold", "verify", "--store", store)
    finally:
        away.rename(segment)
    found = [json.loads(line) for line in failed.stdout.splitlines()]
    assert failed.returncode == text.returncode == 1
    found[:-1] = sorted(found[:-1], key=lambda each: str(each["kind"]))
    assert [(each["kind"], each["key"], each["base_offset"], each["next_offset"]) for each in found[:-1]] == [
        ("missing", key, 0, 6),
        ("unreferenced", key.rpartition("/")[0] + "/away", -1, -1),
    ]
    assert (found[-1]["missing"], found[-1]["unreferenced"], found[-1]["partitions"]) == (1, 1, 1)
    assert f"missing: letters-0 offsets 0 to 6 {key}" in text.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--partition", "0"), "--partition needs --topic"),
        (("--topic", "letters", "--partition", "5"), "letters has partitions 0 to 0, not 5"),
    ],
)
def test_verify_refuses_a_partition_that_is_not_there(store: str, arguments: tuple[str, ...], words: str) -> None:
    refused = run_tiered("cold", "verify", "--store", store, *arguments)
    assert (refused.returncode, refused.stdout) == (2, "") and words in refused.stderr
