"""Clients that write continuously and record each acknowledgement with offset and time."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaError, Message, Producer

from tests.chaos.audit import PartitionKey
from tests.chaos.client_log import DEBUG, ClientLog, logger
from tests.peer.kafka import TOOLS, java

PADDING = b" " + b"x" * 200
IN_FLIGHT = 500
BATCH_BYTES, KEYED_BATCH_BYTES = 1_000_000, 32_768
"""Limits of a batch: the default, and one that fits into the small segments of a compacted topic after an outage."""
RATE = 60
"""Records a second and partition."""
RETRIES = {"retry.backoff.ms": 50, "retry.backoff.max.ms": 200, "topic.metadata.refresh.interval.ms": 1000}
REPLY_SECONDS = 10
"""Seconds that a client waits for a reply of a silent broker; librdkafka's default is as long as a run's deadlines."""


class Writer(Protocol):
    """The interface of a client in a run."""

    name: str
    times: dict[PartitionKey, list[float]]
    """Times of acknowledgements, in monotonic seconds; none of a client that writes in transactions."""

    @property
    def failures(self) -> list[str]:
        """Returns failed records, or a failure of the whole client."""

    @property
    def acked(self) -> dict[PartitionKey, list[tuple[int, int]]]:
        """Returns the acknowledged numbers of each partition in order, each with its offset (-1: unknown)."""

    @property
    def epoch_bumps(self) -> list[str]:
        """Returns the reasons for which it began a new producer epoch by itself, if it reports them."""

    def next_numbers(self) -> dict[PartitionKey, int]:
        """Returns the next unsent number of each partition; none if the client chooses partitions."""

    def finish(self, seconds: float) -> None:
        """Waits until all sent records are acknowledged, and ends."""


class ConfluentWriter:
    """An idempotent producer of confluent-kafka (librdkafka). A record is `name.partition.number`, and its key the rest
    of the number by `keys`, if there are any."""

    def __init__(
        self,
        name: str,
        address: str,
        topic: str,
        partitions: int,
        directory: Path,
        *,
        rate: float = RATE,
        keys: int = 0,
    ) -> None:
        self.name = name
        self.topic = topic
        self._keys = keys
        self.log = ClientLog(directory / f"client-{name}.log")
        self.acked: dict[PartitionKey, list[tuple[int, int]]] = defaultdict(list)
        self.times: dict[PartitionKey, list[float]] = defaultdict(list)
        self.failures: list[str] = []
        self._next_numbers = [0] * partitions
        self._rate = rate
        self._producer = Producer(
            {
                "bootstrap.servers": address, "enable.idempotence": True, "acks": "all", "linger.ms": 5,
                "delivery.timeout.ms": 0, "log_level": 7, "debug": DEBUG, "error_cb": self._on_error,
                "batch.size": KEYED_BATCH_BYTES if keys else BATCH_BYTES, **RETRIES,
                "socket.timeout.ms": REPLY_SECONDS * 1000,
            },
            logger=logger(name, self.log),
        )  # fmt: skip
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write, name=name, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        began, count = time.monotonic(), 0
        while not self._ending.is_set():
            due = (time.monotonic() - began) * self._rate * len(self._next_numbers)
            if len(self._producer) >= IN_FLIGHT:
                began, count = time.monotonic(), 0
            elif count < due:
                partition = count % len(self._next_numbers)
                number, self._next_numbers[partition] = self._next_numbers[partition], self._next_numbers[partition] + 1
                value = f"{self.name}.{partition}.{number}".encode() + PADDING
                key = b"%d" % (number % self._keys) if self._keys else None
                self._producer.produce(self.topic, value, key, partition=partition, on_delivery=self._on_delivery)
                count += 1
                self._producer.poll(0)
                continue
            self._producer.poll(0.005)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None and partition is not None
        number = int(value.split()[0].rpartition(b".")[2])
        if error is not None:
            self.failures.append(f"{self.name}: {value[:40]!r} was given up: {error}")
            return
        place = (self.topic, partition)
        self.acked[place].append((number, -1 if offset is None else offset))
        self.times[place].append(time.monotonic())

    @property
    def epoch_bumps(self) -> list[str]:
        return self.log.epoch_bumps

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.failures.append(f"{self.name}: {error}")

    def next_numbers(self) -> dict[PartitionKey, int]:
        return {(self.topic, partition): number for partition, number in enumerate(self._next_numbers)}

    def finish(self, seconds: float) -> None:
        self._ending.set()
        self._thread.join(10)
        left = self._producer.flush(seconds)
        if left:
            self.failures.append(f"{self.name}: {left} records are not acknowledged after {seconds} s")
        self.log.close()


class VerifiableWriter:
    """Kafka's VerifiableProducer, idempotent. A record is `prefix.number`; the client chooses partitions."""

    def __init__(self, prefix: int, address: str, topic: str, directory: Path) -> None:
        self.name = str(prefix)
        self.acked: dict[PartitionKey, list[tuple[int, int]]] = defaultdict(list)
        self.times: dict[PartitionKey, list[float]] = defaultdict(list)
        self.failures: list[str] = []
        config = directory / "verifiable.properties"
        settings = {"enable.idempotence": "true", "retries": 1 << 30, "delivery.timeout.ms": 600_000}
        settings |= {"retry.backoff.ms": 50, "retry.backoff.max.ms": 200, "max.block.ms": 600_000}
        settings |= {"request.timeout.ms": REPLY_SECONDS * 1000}
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        arguments = ["--bootstrap-server", address, "--topic", topic, "--acks", "-1", "--throughput", "150"]
        arguments += ["--value-prefix", self.name, "--command-config", str(config)]
        command = java(TOOLS["verifiable-producer"], arguments, heap="128m")
        self._errors = (directory / "verifiable.log").open("ab")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        self.epoch_bumps: list[str] = []
        self._thread = threading.Thread(target=self._read, name="verifiable", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._on_line(json.loads(line))

    def _on_line(self, said: dict[str, Any]) -> None:
        if said["name"] == "producer_send_success":
            place = (said["topic"], said["partition"])
            self.acked[place].append((int(said["value"].partition(".")[2]), said["offset"]))
            self.times[place].append(time.monotonic())
        elif said["name"] == "producer_send_error":
            self.failures.append(f"Java: {said['value']} was given up: {said.get('message')}")

    def next_numbers(self) -> dict[PartitionKey, int]:
        return {}

    def finish(self, seconds: float) -> None:
        if self._process.poll() is not None:
            self.failures.append(f"Java: ended by itself with {self._process.returncode}")
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.failures.append(f"Java: records are not acknowledged after {seconds} s")
            self.kill()
        self._thread.join(10)
        self._close()

    def kill(self) -> None:
        """Ends the client at once, after a failed run."""
        self._process.kill()
        self._process.wait()
        self._thread.join(10)
        self._close()

    def _close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def has_java() -> bool:
    return shutil.which("java") is not None and shutil.which("mvn") is not None
