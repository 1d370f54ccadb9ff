"""The price of rules and quotas, and a tenant beside another one that floods."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from bench.peer.brokers import MeasuredBroker
from bench.peer.clients import LoadResult, build_loader, create_topics, delete_topic
from bench.peer.latency import PROPERTIES, QUANTILES, RECORDS_A_SECOND, VALUE
from bench.peer.machine import measure_wakeup_delay
from bench.peer.throughput import CONSUMER, MB, PARTITIONS, PRODUCER, fill, run_load, sum_loads, wait_deleted
from bench.peer.tls import PROTOCOLS
from bench.peer.wire import create_acls, set_quotas
from bench.peer.workload import Figures, Leg, Metric, Workload
from tests.ports import free_port
from tiered_api.kafka.protocol.messages.create_acls import AclCreation

USER, PASSWORD = "bench", "bench-secret"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
TOPIC, ALLOW, PREFIXED, ALL_OPERATIONS, WRITE = 2, 3, 4, 2, 4
"""Numbers of CreateAcls."""
RULES = 200
"""Rules for other users, beside that of the user who writes."""
ACL_RECORDS = 1_000_000
NO_LIMIT = 1e12
SMALL_BATCH_BYTES = 16_384
"""Size of a batch that a Java client sends by default."""
FLOODERS = 2
FLOOD_BYTES_A_SECOND = 10 * MB
FLOOD_SECONDS = 5.0
"""Time of the flood before latencies count: Kafka lets the quota of eleven seconds pass first, and so do we."""


def add_rules(broker: MeasuredBroker) -> dict[str, object]:
    """Gives a broker that does not run yet an authorizer, and a listener with a login. Callers without a login are its
    administrators. Returns the properties of the user, for librdkafka."""
    address = f"127.0.0.1:{free_port()}"
    broker.settings |= {
        "listeners": f"PLAINTEXT://{broker.address},SASL_PLAINTEXT://{address}",
        "listener.security.protocol.map": PROTOCOLS,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_{USER}="{PASSWORD}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    login = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    return {"bootstrap.servers": address, "security.protocol": "sasl_plaintext", **login}


def set_rules(broker: MeasuredBroker) -> None:
    """Lets the user write, and sets quotas that it never reaches."""
    rules = [
        AclCreation(TOPIC, f"of-{number}-", PREFIXED, f"User:other-{number}", "*", ALL_OPERATIONS, ALLOW)
        for number in range(RULES)
    ]
    create_acls(broker.port, *rules, AclCreation(TOPIC, "round-", PREFIXED, f"User:{USER}", "*", WRITE, ALLOW))
    set_quotas(broker.port, "user", USER, producer_byte_rate=NO_LIMIT, consumer_byte_rate=NO_LIMIT)


def measure_rules(leg: Leg, *, batch_bytes: int) -> Figures:
    """Two brokers run at once, and rounds of the producer alternate between them: only one has rules and quotas."""
    with ExitStack() as stack:
        plain, ruled = leg.broker(leg.root), leg.broker(leg.root)
        producer = {**PRODUCER, "batch.size": batch_bytes}
        sides = [(plain, producer), (ruled, {**producer, **add_rules(ruled)})]
        for broker, _ in sides:
            stack.enter_context(broker)
        set_rules(ruled)
        options = ["-s", "1024", "-n", str(ACL_RECORDS)]
        timed: list[list[LoadResult]] = [[], []]
        for number in range(leg.scale.warm_rounds + 2 * leg.scale.timed_rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                broker, properties = sides[side]
                before, topic = broker.disk_bytes(), f"round-{number}"
                done = fill(broker, topic, PARTITIONS, options, properties)
                if number >= leg.scale.warm_rounds:
                    timed[side].append(done)
                delete_topic(broker.address, topic)
                wait_deleted(broker, before + 64 * MB)
        without, with_rules = sum_loads(timed[0], plain), sum_loads(timed[1], ruled)
        return {
            "kept": with_rules["rate"] / without["rate"],
            "cost": with_rules["cpu"] / without["cpu"],
            **{f"{name}_plain": without[name] for name in ("rate", "cpu")},
            **{f"{name}_ruled": with_rules[name] for name in ("rate", "cpu")},
            "foreign": max(without["foreign"], with_rules["foreign"]),
        }


@contextmanager
def flood(broker: MeasuredBroker) -> Iterator[None]:
    """Another tenant writes as fast as its quota lets it, until the end of the context."""
    create_topics(broker.address, {"flooded": PARTITIONS})
    set_quotas(broker.port, "client-id", "flooder", producer_byte_rate=FLOOD_BYTES_A_SECOND)
    command = [str(build_loader()), "produce", "-b", broker.address, "-t", "flooded", "-p", str(PARTITIONS)]
    command += ["-s", "1024", "-n", str(1 << 40)]
    for name, value in {**PRODUCER, "client.id": "flooder"}.items():
        command += ["-X", f"{name}={value}"]
    flooders = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(FLOODERS)]
    try:
        time.sleep(FLOOD_SECONDS)
        yield
        if any(each.poll() is not None for each in flooders):
            raise RuntimeError("a tenant that floods has ended")
    finally:
        for each in flooders:
            each.kill()
            each.wait()


def measure_tenants(leg: Leg) -> Figures:
    """A tenant reads what it writes, alone and then beside the flood."""
    _, delay = measure_wakeup_delay(leg.scale.timed_seconds)
    with leg.broker(leg.root) as broker:
        topics = ("alone", "beside")
        create_topics(broker.address, dict.fromkeys(topics, 1))
        set_quotas(broker.port, "client-id", "tenant", producer_byte_rate=FLOOD_BYTES_A_SECOND)
        alone = _write_and_read(leg, broker, "alone", leg.scale.latency_warm_seconds)
        empty = broker.disk_bytes()
        with flood(broker):
            beside = _write_and_read(leg, broker, "beside", leg.scale.warm_seconds)
            flooded = broker.disk_bytes() - empty
        return {
            "times": beside.counts["p99_us"] / alone.counts["p99_us"],
            **{f"alone_{name}": alone.counts[name] for name in QUANTILES},
            **{f"beside_{name}": beside.counts[name] for name in QUANTILES},
            "flood_mb": flooded / MB,
            "floor_p999_us": delay * 1e6,
            "foreign": alone.usage.foreign_share,
        }


def _write_and_read(leg: Leg, broker: MeasuredBroker, topic: str, warm: float) -> LoadResult:
    options = ["-s", str(len(VALUE)), "-r", str(RECORDS_A_SECOND), "-w", str(warm)]
    options += ["-T", str(2 * leg.scale.timed_seconds)]
    return run_load(broker, "latency", topic, options, {**PROPERTIES, **CONSUMER, "client.id": "tenant"})


RULES_METRICS = (
    Metric("kept", "x", 0.95, at_most=False, is_own=True), Metric("cost", "x"),
    Metric("rate_plain", "records/s"), Metric("rate_ruled", "records/s"),
    Metric("cpu_plain", "s/GB"), Metric("cpu_ruled", "s/GB"),
)  # fmt: skip
WORKLOADS = (
    Workload(
        "acl", "produce 1 KiB with rules and quotas, as share of the rate without", RULES_METRICS,
        partial(measure_rules, batch_bytes=1_000_000),
    ),
    Workload(
        "acl-16k", "the same in batches of 16 KiB", RULES_METRICS,
        partial(measure_rules, batch_bytes=SMALL_BATCH_BYTES),
    ),
    Workload(
        "tenants", "p99 of a tenant beside one that floods, as times of that alone",
        (
            Metric("times", "x", 1.5, is_own=True), Metric("alone_p99_us", "us"), Metric("beside_p99_us", "us"),
            Metric("alone_p50_us", "us"), Metric("beside_p50_us", "us"), Metric("flood_mb", "MB"),
        ),
        measure_tenants,
    ),
)  # fmt: skip
