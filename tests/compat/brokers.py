"""The two brokers that every assertion runs against: ours as users start it, and Apache Kafka."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.e2e.serving import ServeProcess
from tests.peer.kafka import Peer
from tests.ports import free_port

QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "offsets.topic.num.partitions": "4",
    "log.segment.bytes": "4194304",
    "num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
"""Settings of both brokers with short timeouts: a dead member is removed after a second or two."""

THEIRS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""Settings of Kafka alone: ours sleeps until the next deadline of a transaction."""

OURS = {
    "log.retention.check.interval.ms": "500",
    "remote.log.manager.task.interval.ms": "500",
    "tiered.object.delete.delay.ms": "5000",
}
"""Settings of ours with small segments: they are uploaded, and local copies go, during a test."""


class CompatBroker(Protocol):
    """The interface of a broker in a test."""

    name: str
    address: str

    @property
    def logs(self) -> Path:
        """Returns the directory of its partitions."""

    def crash(self) -> None:
        """Sends SIGKILL and starts the broker again on the same directory and port."""


class TieredBroker:
    """`tiered serve` on a directory with a directory as its bucket."""

    name = "ours"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self.served = self._start()

    def _start(self) -> ServeProcess:
        settings = [word for name, value in (QUICK | OURS).items() for word in ("-c", f"{name}={value}")]
        store = f"file://{self.directory / 'bucket'}"
        return ServeProcess(self.directory / "data", "--kafka", self.address, "--store", store, *settings)

    @property
    def logs(self) -> Path:
        return self.directory / "data" / "log"

    def crash(self) -> None:
        self.served.stop(signal.SIGKILL)
        self.served = self._start()

    def close(self) -> None:
        self.served.stop()


class ApacheKafka:
    """Kafka's newest release."""

    name = "peer"

    def __init__(self) -> None:
        self.peer = Peer(QUICK | THEIRS)
        self.peer.start()
        self.address = self.peer.address

    @property
    def logs(self) -> Path:
        return self.peer.logs

    def crash(self) -> None:
        self.peer.stop(signal.SIGKILL)
        self.peer.start()

    def close(self) -> None:
        self.peer.close()


@contextmanager
def run_broker(name: str) -> Iterator[CompatBroker]:
    """Yields one of the two, new; removes it at the end."""
    if name == "peer":
        theirs = ApacheKafka()
        try:
            yield theirs
        finally:
            theirs.close()
        return
    directory = Path(tempfile.mkdtemp(prefix="tiered-compat-"))
    try:
        ours = TieredBroker(directory)
        try:
            yield ours
        finally:
            ours.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
