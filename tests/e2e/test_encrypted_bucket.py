"""Tests of a cluster whose bucket is encrypted: a broker with an empty disk, and the command line with and without the
keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.serving import ServeProcess, run_tiered
from tests.encryption import KEYS, write_key_file
from tiered_api.cli.exits import Exit
from tiered_api.cli.main import main

SOON = ("-c", "tiered.upload.max.lag.ms=1", "-c", "log.retention.check.interval.ms=20")
VALUES = [f"attack at dawn {number}" for number in range(50)]
TOPIC = "movements-of-troops"
CLEAR = (b"attack at dawn", TOPIC.encode(), b"controller_elected", b'"crc"', b"leader_epoch", *KEYS.values())
"""Parts of records, names, metadata, manifests and keys."""


def find_clear(bucket: Path) -> list[tuple[str, bytes]]:
    """Returns the objects of a bucket that show something."""
    files = [path for path in bucket.rglob("*") if path.is_file()]
    assert len(files) > 3
    return [(str(path), text) for path in files for text in CLEAR if text in path.read_bytes()]


def test_bucket_shows_nothing_and_brings_a_broker_with_an_empty_disk_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket, keys = tmp_path / "bucket", write_key_file(tmp_path / "keys")
    url = f"file://{bucket}"
    encrypted = ("--store", url, "-c", f"tiered.encryption.keys.file={keys}", *SOON)
    with ServeProcess(tmp_path / "first", *encrypted) as broker:
        broker.create_topic(TOPIC)
        broker.produce(TOPIC, *VALUES)
        broker.wait_for_offset(TOPIC, "cold_end_offset", len(VALUES))
    assert find_clear(bucket) == []
    with ServeProcess(tmp_path / "second", *encrypted) as broker:
        assert broker.values(TOPIC) == VALUES
        assert broker.values(TOPIC, 42) == VALUES[42:]
    assert find_clear(bucket) == []

    assert main(["cold", "cat", "--store", f"{url}?keys={keys}", "--topic", TOPIC]) == Exit.OK
    assert [line.split("\t")[-1] for line in capsys.readouterr().out.splitlines()] == [f'"{text}"' for text in VALUES]
    assert main(["cold", "cat", "--store", url, "--topic", TOPIC]) == Exit.UNAVAILABLE
    assert "meta/FORMAT is encrypted by key one, and no keys are given" in capsys.readouterr().err
    other = write_key_file(tmp_path / "other", "two", active="two")
    assert main(["cold", "cat", "--store", f"{url}?keys={other}", "--topic", TOPIC]) == Exit.UNAVAILABLE
    assert f"meta/FORMAT is encrypted by key one, which {other} does not have: add the key" in capsys.readouterr().err
    refused = run_tiered("serve", "--data-dir", str(tmp_path / "third"), "--store", url, "--kafka", "127.0.0.1:0")
    assert refused.returncode == Exit.UNAVAILABLE
    assert "meta/FORMAT is encrypted by key one, and no keys are given" in refused.stderr
