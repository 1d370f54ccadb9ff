"""The parts that stories of programs with compacted topics share: settings with which a topic is cleaned soon, on the
disk or in the bucket, and a reader of a whole topic."""

from __future__ import annotations

import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import ClientRecord, DriverClient
from tests.compat.conftest import CHOICE

SECONDS = 120.0
PAUSE_SECONDS = 0.1
STOP_SECONDS = 20
SOON = {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"}
"""A segment is closed once a record is half a second older than the next one."""
PLACES = {
    "disk": {"remote.storage.enable": "false"},
    "bucket": {"remote.storage.enable": "true", "local.retention.bytes": "1"},
}
"""By place of the clean: settings that ours needs. In the bucket, readers get what the bucket has."""


def places() -> list[str]:
    """Returns the places where the brokers of this run clean a topic."""
    return [*PLACES] if CHOICE != "peer" else ["disk"]


def soon_cleaned(broker: CompatBroker, place: str) -> dict[str, str]:
    """Returns the settings of a topic that is cleaned soon at a place. Kafka cleans on its disk only."""
    if broker.name == "peer" and place != "disk":
        pytest.skip("Kafka cleans no topic in a bucket")
    return SOON | (PLACES[place] if broker.name != "peer" else {})


class WholeTopic(NamedTuple):
    """The records of the only partition of a topic, and its log end."""

    records: list[ClientRecord]
    end: int

    @property
    def is_cleaned(self) -> bool:
        """True if cleans have removed more than half of its records."""
        return len(self.records) < self.end // 2

    @property
    def state(self) -> dict[bytes | None, bytes | None]:
        """Returns the last value of each key."""
        return {each.key: each.value for each in self.records}


def read_topic(client: DriverClient, topic: str) -> WholeTopic:
    """Reads a topic from its start to its end."""
    client.records.clear()
    client.ask("open", group=f"{topic}-reader")
    client.ask("assign", partitions=[[topic, 0, 0]])
    ((_, _, _, end),) = client.ask("ends", partitions=[[topic, 0]])
    client.wait_until(lambda: not end or any(each.offset >= end - 1 for each in client.records), SECONDS)
    client.ask("leave")
    return WholeTopic(sorted(client.records, key=lambda each: each.offset), end)


def write_until_cleaned(client: DriverClient, topics: list[str], write: Callable[[int], None]) -> int:
    """Writes round after round until all these topics are cleaned. Returns the number of rounds."""
    deadline, rounds = time.monotonic() + SECONDS, 0
    while True:
        write(rounds)
        rounds += 1
        if all(read_topic(client, each).is_cleaned for each in topics):
            return rounds
        assert time.monotonic() < deadline, f"not cleaned: {[read_topic(client, each) for each in topics]}"


def read_url(url: str, body: bytes | None = None, *, method: str = "GET", media: str = "application/json") -> bytes:
    """Returns the reply to a request."""
    request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": media})
    with urllib.request.urlopen(request, timeout=STOP_SECONDS) as answer:
        found: bytes = answer.read()
        return found


def wait_for(found: Callable[[], bool], what: Callable[[], str]) -> None:
    """Waits until another program is so far."""
    deadline = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < deadline, what()
        time.sleep(PAUSE_SECONDS)


@contextmanager
def running(
    command: list[str],
    is_ready: Callable[[], bool] = lambda: True,
    *,
    env: Mapping[str, str] | None = None,
    ends_with_stdin: bool = False,
) -> Iterator[None]:
    """Runs a program, and yields once it is ready. Stops it as its users do: by SIGTERM, or by the end of its input."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=env)
        assert process.stdin is not None

        def is_up() -> bool:
            assert process.poll() is None, _tail(output)
            return is_ready()

        try:
            wait_for(is_up, lambda: _tail(output))
            yield
            if ends_with_stdin:
                process.stdin.close()
            else:
                process.terminate()
            process.wait(STOP_SECONDS)
        finally:
            process.kill()
            process.communicate()


def answers(url: str) -> bool:
    """True if a program replies at this URL."""
    try:
        return bool(read_url(url))
    except OSError:
        return False


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read()[-3000:].decode(errors="replace")


def login_lines(broker: CompatBroker, directory: Path) -> list[str]:
    """Returns the properties of a Java client that logs in; none without a login."""
    if broker.login is None:
        return []
    return broker.login.write_properties(directory / "login").read_text().splitlines()
