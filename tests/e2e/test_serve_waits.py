"""Tests of `tiered serve` and `tiered up` as processes while the bucket is unreachable: they wait, report it, and
continue or end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import COMMAND, ServeProcess, run_tiered
from tests.fakes3 import FakeS3, HttpFault, s3_fake
from tests.ports import held_port
from tiered.object_store.faulty import FaultKind

SECONDS = 120.0
STORE = "s3://bucket/x"


@pytest.fixture
def fake() -> Iterator[FakeS3]:
    with s3_fake() as server:
        yield server


class WaitingProcess:
    """A command whose bucket is unreachable, and the address where its first broker reports it."""

    def __init__(self, directory: Path, http: int, env: dict[str, str], *words: str) -> None:
        self.http = f"http://127.0.0.1:{http}"
        self.log = directory / "log"
        command = [*COMMAND, *words, "--data-dir", str(directory / "data"), "--store", STORE]
        command += ["--http", f"127.0.0.1:{http}", "--kafka", "127.0.0.1:0"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **env}
            )

    def health(self) -> tuple[int, dict[str, Any]]:
        """Returns the health as soon as a broker replies."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.http}/healthz", timeout=SECONDS) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)
            except OSError:
                assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
                time.sleep(0.05)

    def wait_until_waiting(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while True:
            status, health = self.health()
            assert status == 503 and not health["ok"], health
            if any("waits for the bucket" in each for each in health["problems"]):
                return health
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def ready(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def stop(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(SECONDS)


@contextmanager
def start_waiting(directory: Path, env: dict[str, str], *words: str) -> Iterator[WaitingProcess]:
    with held_port() as held:
        started = WaitingProcess(directory, held.getsockname()[1], env, *words)
        try:
            yield started
        finally:
            if started.process.poll() is None:
                started.process.terminate()
                started.process.wait(SECONDS)
            assert started.process.stdout is not None
            started.process.stdout.close()


def test_start_waits_for_a_failing_bucket_and_continues_or_ends_on_a_stop(fake: FakeS3, tmp_path: Path) -> None:
    """Both at once, because S3's client takes many seconds to report the failure."""
    fake.faults.append(HttpFault(FaultKind.ERROR, status=429))
    (other := tmp_path / "other").mkdir()
    with (
        start_waiting(other, fake.environment, "serve") as stopped,
        start_waiting(tmp_path, fake.environment, "serve") as broker,
    ):
        stopped.wait_until_waiting()
        assert stopped.stop(signal.SIGTERM) == 0
        assert stopped.log.read_text().splitlines()[-1].endswith("stopped before it served")
        health = broker.wait_until_waiting()
        assert health["details"]["store_unreachable_since_ms"]
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{broker.http}/topics", timeout=SECONDS)
        assert caught.value.code == 503 and "is starting" in caught.value.read().decode()
        with urllib.request.urlopen(f"{broker.http}/metrics", timeout=SECONDS) as metrics:
            away = re.search(rb"^tiered_store_unavailable_seconds ([0-9.]+)$", metrics.read(), re.MULTILINE)
        assert away is not None and float(away[1]) > 0
        fake.mend()
        assert broker.ready().startswith("tiered is ready: ")
        assert broker.health()[0] == 200
        assert broker.stop(signal.SIGTERM) == 0
    assert broker.log.read_text().count("start waits for the bucket") == 1


def test_start_ends_on_a_stop_if_the_bucket_does_not_reply(fake: FakeS3, tmp_path: Path) -> None:
    fake.faults.append(HttpFault(FaultKind.DELAY, seconds=600.0))
    with start_waiting(tmp_path, fake.environment, "serve") as broker:
        broker.health()
        assert broker.stop(signal.SIGINT) == 0
    assert broker.log.read_text().splitlines()[-1].endswith("stopped before it served")


def test_cluster_on_one_machine_waits_as_a_whole_for_the_bucket(tmp_path: Path) -> None:
    with s3_fake() as gone:
        env = gone.environment
    with start_waiting(tmp_path, env, "up", "--brokers", "3") as cluster:
        cluster.wait_until_waiting()
        assert cluster.process.poll() is None
        assert cluster.stop(signal.SIGINT) == 0
        assert cluster.ready() == ""


def test_cluster_on_one_machine_is_ready_once_its_bucket_is(fake: FakeS3, tmp_path: Path) -> None:
    fake.faults.append(HttpFault(FaultKind.ERROR, status=500))
    with start_waiting(tmp_path, fake.environment, "up", "--brokers", "3") as cluster:
        cluster.wait_until_waiting()
        fake.mend()
        assert cluster.ready().startswith("tiered is ready: 3 brokers ")
        assert cluster.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("store", "keys", "status", "words"),
    [
        (STORE, {}, 403, "AccessDenied"),
        ("s3://no-such-bucket", {}, 0, "NoSuchBucket"),
        (STORE, {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, 0, "credentials"),
    ],
)
def test_error_that_no_wait_can_fix_ends_the_start(
    fake: FakeS3, tmp_path: Path, store: str, keys: dict[str, str], status: int, words: str
) -> None:
    if status:
        fake.faults.append(HttpFault(FaultKind.ERROR, status=status))
    where = ("--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0")
    done = run_tiered("serve", "--store", store, *where, env=fake.environment | keys)
    assert done.returncode == 4, done.stderr
    assert words in done.stderr.splitlines()[-1]


def test_bucket_that_ignores_conditions_is_refused_by_the_next_start(fake: FakeS3, tmp_path: Path) -> None:
    """The cluster may have been created through another endpoint, or on the store from which the bucket was copied."""
    with ServeProcess(tmp_path / "data", "--store", STORE, env=fake.environment) as broker:
        assert broker.stop() == 0
    before = {key: held.body for key, held in fake.rules.buckets["bucket"].items()}
    fake.rules.ignore_conditions = True
    where = ("--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0")
    done = run_tiered("serve", "--store", STORE, *where, env=fake.environment)
    assert done.returncode == 2
    assert "cannot be used: it overwrites" in done.stderr.splitlines()[-1]
    assert {key: held.body for key, held in fake.rules.buckets["bucket"].items()} == before
