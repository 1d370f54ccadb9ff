"""The clients of a leg: the loader in C for throughput, confluent-kafka for all else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.peer.machine import CpuUsage, CpuWindow

HERE = Path(__file__).parent
CFLAGS = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
ADMIN_SECONDS = 60.0
LEG_SECONDS = 600.0
PARTITIONS_A_REQUEST = 1000
FAST_RETRY = {
    "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 20, "retry.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 50, "topic.metadata.propagation.max.ms": 300_000,
    "socket.timeout.ms": 10_000, "message.timeout.ms": 300_000, "linger.ms": 0, "acks": 1, "log_level": 2,
}  # fmt: skip
"""Retries at once: the leg measures the broker that comes back, not the client's backoff."""


def build_loader() -> Path:
    """Returns the loader's binary. It uses librdkafka of confluent-kafka's wheel."""
    wheel = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = next(wheel.glob("librdkafka-*.so*"), None)
    linked = [str(library), f"-Wl,-rpath,{wheel}"] if library else ["-lrdkafka"]
    return compile_program("load", sorted(HERE.glob("*.[ch]")), linked, "librdkafka's headers (librdkafka-dev)")


def compile_program(name: str, sources: Sequence[Path], linked: Sequence[str], needs: str) -> Path:
    """Returns a binary, compiled if its sources changed."""
    root = Path(os.environ.get("TIERED_BENCH") or Path.home() / ".cache" / "tiered" / "bench")
    parts = [*(each.read_bytes() for each in sources), repr(linked).encode()]
    binary = root / f"{name}-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
    if not binary.exists():
        root.mkdir(parents=True, exist_ok=True)
        scratch = binary.with_suffix(f".{os.getpid()}")
        names = [str(each) for each in sources if each.suffix == ".c"]
        try:
            subprocess.run(["cc", *CFLAGS, "-o", str(scratch), *names, *linked, "-lpthread"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"the bench needs a C compiler and {needs}: {error}") from None
        scratch.rename(binary)
    return binary


@dataclass(frozen=True)
class LoadResult:
    """One run of the loader: its counts, and the CPU use of the machine meanwhile."""

    counts: Mapping[str, float]
    usage: CpuUsage


def run_loader(
    mode: str,
    brokers: Iterable[int],
    address: str,
    topic: str,
    options: Sequence[str],
    properties: Mapping[str, object],
) -> LoadResult:
    """Runs the loader to its end. `brokers` are process ids, `properties` librdkafka's."""
    command = [str(build_loader()), mode, "-b", address, "-t", topic, *options]
    for name, value in properties.items():
        command += ["-X", f"{name}={value}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        window = None
        try:
            for line in process.stdout:
                word, _, rest = line.partition(" ")
                if word.strip() == "start":
                    window = CpuWindow(brokers, process.pid)
                elif word == "end" and window is not None:
                    return LoadResult(json.loads(rest), window.close())
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
    raise RuntimeError(f"the loader ended with {process.returncode}: {' '.join(command)}")


def create_topics(address: str, topics: Mapping[str, int], replicas: int = 1, **configs: str) -> None:
    """Creates topics with this many partitions each, by requests of bounded size.

    With several replicas, all but one have to acknowledge.
    """
    if replicas > 1:
        configs["min_insync_replicas"] = str(replicas - 1)
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    waiting: list[NewTopic] = []
    names = list(topics)
    for number, name in enumerate(names):
        config = {key.replace("_", "."): value for key, value in configs.items()}
        waiting.append(NewTopic(name, num_partitions=topics[name], replication_factor=replicas, config=config))
        if number + 1 == len(names) or sum(each.num_partitions for each in waiting) >= PARTITIONS_A_REQUEST:
            for future in admin.create_topics(waiting, request_timeout=ADMIN_SECONDS).values():
                future.result(ADMIN_SECONDS)
            waiting.clear()


def delete_topic(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    for future in admin.delete_topics([topic], request_timeout=ADMIN_SECONDS).values():
        future.result(ADMIN_SECONDS)


def count_records(address: str, topic: str, partitions: int) -> int:
    """Returns the sum of the partitions' high watermarks."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "count", "log_level": 2})
    try:
        ends = (consumer.get_watermark_offsets(TopicPartition(topic, each), 10) for each in range(partitions))
        return sum(high for _, high in ends)
    finally:
        consumer.close()


def leader_addresses(address: str, topic: str) -> list[str]:
    """Returns HOST:PORT of the leader of each partition, in their order, once all have one."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    until = time.perf_counter() + ADMIN_SECONDS
    while True:
        found = admin.list_topics(topic, 10)
        partitions = found.topics[topic].partitions
        leaders = [found.brokers.get(partitions[number].leader) for number in sorted(partitions)]
        if leaders and all(leaders):
            return [f"{each.host}:{each.port}" for each in leaders if each is not None]
        if time.perf_counter() > until:
            raise RuntimeError(f"partitions of {topic} have no leader")
        time.sleep(0.02)


@dataclass
class AckTimes:
    """Times at which records, one on each partition, were acknowledged: seconds since the start of the measurement."""

    first: float
    last: float


def produce_to_each(
    address: str, partitions: Sequence[tuple[str, int]], since: float, check_alive: Callable[[], None], acks: str = "1"
) -> AckTimes:
    """Produces one record to each partition as soon as it accepts one. Calls `check_alive` from time to time."""
    producer = Producer({**FAST_RETRY, "acks": acks, "bootstrap.servers": address})
    times: list[float] = []
    failures: list[str] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is None:
            times.append(time.perf_counter() - since)
        else:
            failures.append(str(error))

    for topic, partition in partitions:
        producer.produce(topic, b"x" * 100, partition=partition, on_delivery=on_delivery)
    until = time.perf_counter() + LEG_SECONDS
    while len(times) + len(failures) < len(partitions) and time.perf_counter() < until:
        producer.poll(0.02)
        check_alive()
    if len(times) < len(partitions):
        raise RuntimeError(f"{len(times)} of {len(partitions)} partitions took a record: {failures[:1]}")
    return AckTimes(times[0], times[-1])


def iterate_partitions(topics: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for name, count in topics.items():
        for partition in range(count):
            yield name, partition
