"""Transactions: throughput with a commit every 100 ms, the time of a commit, many producers, and committed reads."""

from __future__ import annotations

from bench.peer.brokers import MeasuredBroker
from bench.peer.clients import LoadResult, create_topics
from bench.peer.throughput import CONSUMER, GB, PARTITIONS, PRODUCER, run_load, sum_loads
from bench.peer.workload import MEMORY, Figures, Leg, Metric, Workload, cpu, rate

TOPIC = "committed"
COMMITS_A_SECOND = 10
PRODUCERS = 100
ABORT_EVERY = 10
RECORDS_EACH = 200
TRANSACTIONS = 5000
"""Transactions of the log that is read."""
WRITERS = 20
"""Producers that write this log. At Kafka each of them writes nine transactions in a second: librdkafka waits for
100 ms if the markers of the transaction before are not written yet."""
IDEMPOTENT_RECORDS = 1_000_000
SETTINGS = {"transaction.state.log.num.partitions": "8"}
TRANSACTIONAL: dict[str, object] = {name: value for name, value in PRODUCER.items() if name != "acks"}
SINGLE: dict[str, object] = {"linger.ms": 0}
QUANTILES = ("p50_us", "p99_us", "max_us")


def transact(broker: MeasuredBroker, topic: str, options: list[str], properties: dict[str, object]) -> LoadResult:
    """Writes transactions to a new topic."""
    create_topics(broker.address, {topic: PARTITIONS})
    return run_load(broker, "transactions", topic, ["-p", str(PARTITIONS), *options], properties)


def lengths(leg: Leg) -> list[str]:
    return ["-w", str(leg.scale.warm_seconds), "-T", str(leg.scale.timed_seconds)]


def measure_produce(leg: Leg) -> Figures:
    """Measures one producer at full speed, and the same producer without transactions."""
    with leg.broker(leg.root, SETTINGS) as broker:
        options = ["-g", "1", "-n", "0", "-r", str(COMMITS_A_SECOND), *lengths(leg)]
        done = transact(broker, TOPIC, options, TRANSACTIONAL)
        create_topics(broker.address, {"plain": PARTITIONS})
        properties = {**PRODUCER, "acks": "all", "enable.idempotence": "true"}
        options = ["-p", str(PARTITIONS), "-n", str(IDEMPOTENT_RECORDS)]
        plain = run_load(broker, "produce", "plain", options, properties)
        figures = sum_loads([done], broker)
        idempotent = plain.counts["records"] / plain.counts["seconds"]
        return {**figures, "idempotent_rate": idempotent, "of_idempotent": figures["rate"] / idempotent}


def measure_commits(leg: Leg, *, producers: int) -> Figures:
    """Measures producers that each commit after every record."""
    with leg.broker(leg.root, SETTINGS) as broker:
        options = ["-g", str(producers), "-n", "1", "-s", "100", *lengths(leg)]
        done = transact(broker, TOPIC, options, SINGLE)
        return {
            "rate": done.counts["commits"] / done.counts["seconds"],
            **{name: done.counts[name] for name in QUANTILES},
            "cpu": done.usage.broker_cpu / done.counts["commits"] * 1e6,
            "broker_cores": done.usage.broker_cpu / done.usage.seconds,
            "client_cores": done.counts["client_cpu"] / done.counts["seconds"],
            "peak_rss_mb": broker.peak_rss() / 1e6,
            "seconds": done.counts["seconds"],
            "foreign": done.usage.foreign_share,
        }


def measure_reads(leg: Leg) -> Figures:
    """Measures whole passes over a log with one aborted transaction in ten, by isolation level."""
    with leg.broker(leg.root, SETTINGS) as broker:
        options = ["-g", str(WRITERS), "-n", str(RECORDS_EACH), "-k", str(TRANSACTIONS), "-a", str(ABORT_EVERY)]
        done = transact(broker, TOPIC, [*options, "-w", "0", "-T", "300"], TRANSACTIONAL)
        written = TRANSACTIONS * RECORDS_EACH
        if done.counts["records"] != written:
            raise RuntimeError(f"{broker.name} took {done.counts['records']:.0f} records of {written} in time")
        passes = {}
        for level, count in (
            ("read_uncommitted", written), ("read_committed", written - written // ABORT_EVERY),
        ):  # fmt: skip
            options = ["-p", str(PARTITIONS), "-n", str(count), *lengths(leg)]
            done = run_load(broker, "consume", TOPIC, options, {**CONSUMER, "isolation.level": level})
            passes[level] = done
        committed, uncommitted = passes["read_committed"], passes["read_uncommitted"]
        figures = sum_loads([committed], broker)
        share = (committed.counts["records"] / committed.counts["seconds"]) / (1 - 1 / ABORT_EVERY)
        share /= uncommitted.counts["records"] / uncommitted.counts["seconds"]
        return {**figures, "of_uncommitted": share, "uncommitted_cpu": _cpu_of(uncommitted)}


def _cpu_of(done: LoadResult) -> float:
    return done.usage.broker_cpu / (done.counts["bytes"] / GB)


WORKLOADS = (
    Workload(
        "transactions-1k", "1 KiB in transactions of 100 ms, 6 partitions",
        (rate("records/s", 1.2), cpu("s/GB"), Metric("of_idempotent", "of the idempotent rate"), MEMORY),
        measure_produce,
    ),
    Workload(
        "commit-each", "one producer, a commit after each record of 100 B",
        (rate("commits/s"), Metric("p50_us", "us", 0.7), Metric("p99_us", "us"), cpu("us/commit"), MEMORY),
        lambda leg: measure_commits(leg, producers=1),
    ),
    Workload(
        "commit-100", "100 such producers at once",
        (rate("commits/s", 1.5), cpu("us/commit", 0.6), Metric("p50_us", "us"), Metric("p99_us", "us"), MEMORY),
        lambda leg: measure_commits(leg, producers=PRODUCERS),
    ),
    Workload(
        "read-committed", "committed reads of a log with one aborted transaction in ten",
        (rate("records/s"), cpu("s/GB"), Metric("of_uncommitted", "of the uncommitted rate"), MEMORY), measure_reads,
    ),
)  # fmt: skip
