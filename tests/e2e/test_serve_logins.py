"""Tests of `tiered serve` while the store's credentials are replaced: new keys of a file are taken, and a broker with
refused keys is unhealthy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.contract.key_rotation import use_file, write_key
from tests.e2e.serving import SECONDS, ServeProcess
from tests.fakes3 import s3_fake


def wait_for_status(broker: ServeProcess, wanted: int) -> Any:
    """Returns the health once it has a status."""
    end = time.monotonic() + SECONDS
    while True:
        status, health = broker.ask("GET", "/healthz")
        if status == wanted:
            return health
        assert time.monotonic() < end, health
        time.sleep(0.05)


def test_broker_takes_rotated_keys_and_stays_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "credentials"
    with s3_fake() as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        use_file(keys, monkeypatch)
        write_key(keys, "OLD")
        fake.rules.access_keys = frozenset(["OLD"])
        quick = ("--store", "s3://bucket/x", "-c", "tiered.upload.max.lag.ms=200")
        with ServeProcess(tmp_path / "data", *quick) as broker:
            broker.create_topic("before")
            write_key(keys, "NEW")
            fake.rules.access_keys = frozenset(["NEW"])
            broker.create_topic("after")
            broker.produce("after", 1, 2)
            broker.wait_for_offset("after", "cold_end_offset", 2)
            status, health = broker.ask("GET", "/healthz")
            assert status == 200 and health["problems"] == []


def test_broker_is_unhealthy_until_its_file_has_keys_that_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "credentials"
    with s3_fake() as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        use_file(keys, monkeypatch)
        write_key(keys, "OLD")
        fake.rules.access_keys = frozenset(["OLD"])
        quick = ("--store", "s3://bucket/x", "-c", "tiered.upload.max.lag.ms=200")
        with ServeProcess(tmp_path / "data", *quick) as broker:
            broker.create_topic("t")
            fake.rules.access_keys = frozenset(["NEW"])
            broker.produce("t", 1)
            health = wait_for_status(broker, 503)
            assert not health["ok"] and "the file of credentials: put new ones there" in health["problems"][0]
            write_key(keys, "NEW")
            wait_for_status(broker, 200)
            assert broker.values("t") == [1]


def test_broker_with_refused_keys_of_the_environment_is_unhealthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_fake() as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        with ServeProcess(
            tmp_path / "data", "--store", "s3://bucket/x", "-c", "tiered.upload.max.lag.ms=200"
        ) as broker:
            broker.create_topic("t")
            fake.rules.access_keys = frozenset(["NEW"])
            broker.produce("t", 1)
            health = wait_for_status(broker, 503)
            assert not health["ok"]
            assert "restart the process with new ones" in health["problems"][0]
            fake.rules.access_keys = None
            wait_for_status(broker, 200)
            assert broker.values("t") == [1]
