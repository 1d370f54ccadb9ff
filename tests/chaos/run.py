"""One run: brokers and clients, one fault after the other, then the audit."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from unittest.mock import patch

from tests.chaos.audit import (
    AuditFindings,
    PartitionKey,
    TransactionOutcome,
    check_compacted,
    check_copies,
    check_records,
    check_transactions,
    read_all,
)
from tests.chaos.cluster import NODES, THIS_PROGRAM, ChaosCluster, Program, chaos_cluster
from tests.chaos.copies import (
    StoredBatch,
    compare_brokers,
    compare_cold,
    producer_lookup,
    read_cold_batches,
    read_log_batches,
)
from tests.chaos.faults import ChaosFault, FaultContext
from tests.chaos.transactions import EACH, CopierChain, TransactionalWriter
from tests.chaos.views import ALONE_TOPIC, ClusterView
from tests.chaos.writers import RATE, ConfluentWriter, VerifiableWriter, Writer

TOPIC, PARTITIONS = "chaos", 6
JAVA_TOPIC, JAVA_PARTITIONS = "java", 3
COMPACTED_TOPIC, COMPACTED_PARTITIONS, KEYS = "compacted", 2, 50
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "internal.segment.bytes": "65536",
    "local.retention.bytes": "65536",
}
ALONE_PARTITIONS, ALONE = 3, {"min.insync.replicas": "1"}
"""A topic of one replica, which only a bucket makes safe."""
OF_BUCKET_FLUSH = {"log.flush": "bucket", "tiered.wal.window.ms": "50"}
TRANSACTIONS_TOPIC, COPIES_TOPIC, TRANSACTIONS_PARTITIONS = "transactions", "copies", 3
FINISH_SECONDS = 60.0
READ_SECONDS = 90.0
SAY_AFTER_SECONDS = 5.0
"""Parts that are not live by then are reported, even before their deadline."""


@dataclass(frozen=True)
class FaultResult:
    """The result of a fault. Seconds: the longest time without an acknowledgement of a partition whose leader was hit
    (worst and median), of any other (worst), and from the repair until everything was live again."""

    name: str
    targets: tuple[int, ...]
    leader_gaps: tuple[float, ...]
    other_gaps: tuple[float, ...]
    recovery_seconds: float


@dataclass
class ChaosReport:
    """The report of a whole run."""

    store: str
    rows: list[FaultResult] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    findings: AuditFindings = field(default_factory=AuditFindings)
    acked: dict[str, int] = field(default_factory=dict)
    transactions: dict[TransactionOutcome, int] = field(default_factory=dict)
    copied: int = 0
    compacted: int = 0
    """Acknowledged records of the compacted topic that were cleaned away."""
    read: int = 0
    batches: int = 0
    cold: int = 0
    epoch_bumps: list[str] = field(default_factory=list)
    """Reasons for which clients began new producer epochs by themselves."""
    seconds: float = 0.0

    @property
    def is_ok(self) -> bool:
        return self.findings.is_ok and not self.failures

    def __str__(self) -> str:
        head = "| Fault | Brokers hit | No ack, led there: worst | median | elsewhere: worst | Live again after |"
        lines = [f"store {self.store}, {self.seconds:.0f} s", "", head, "| --- | --- | ---: | ---: | ---: | ---: |"]
        for row in self.rows:
            hit = ", ".join(map(str, row.targets)) or "-"
            worst = f"{max(row.leader_gaps):.2f} s" if row.leader_gaps else "-"
            middle = f"{median(row.leader_gaps):.2f} s" if row.leader_gaps else "-"
            others = f"{max(row.other_gaps):.2f} s" if row.other_gaps else "-"
            lines.append(f"| {row.name} | {hit} | {worst} | {middle} | {others} | {row.recovery_seconds:.1f} s |")
        acked = ", ".join(f"{name} {count:,}" for name, count in self.acked.items())
        lines += [
            "",
            f"acknowledged: {acked}; read back {self.read:,}; batches of three copies compared {self.batches:,}, with"
            f" those of the bucket {self.cold:,}",
            "transactions: "
            + ", ".join(f"{each.value} {count:,}" for each, count in self.transactions.items())
            + f"; records copied in transactions {self.copied:,}; records cleaned away {self.compacted:,}",
        ]
        bumps = [f"new producer epoch or producer: {each}" for each in self.epoch_bumps[:20]]
        return "\n".join([*lines, str(self.findings), *bumps, *self.failures[:20]])


class ChaosRun:
    """The parts of a running run."""

    def __init__(
        self, three: ChaosCluster, writers: list[Writer], deadline_factor: float, say: Callable[[str], None]
    ) -> None:
        self.trio = three
        self.deadline_factor = deadline_factor
        self.writers = writers
        self.say = say
        self.rows: list[FaultResult] = []

    def next_numbers(self) -> dict[tuple[int, PartitionKey], int]:
        return {
            (i, place): count for i, each in enumerate(self.writers) for place, count in each.next_numbers().items()
        }

    def acked_since(self, sent: Mapping[tuple[int, PartitionKey], int]) -> bool:
        """True if each writer got an acknowledgement in each partition for a later record."""
        last = {
            (i, place): answers[-1][0]
            for i, each in enumerate(self.writers)
            for place, answers in list(each.acked.items())
            if answers
        }
        return all(last.get(place, -1) >= number for place, number in sent.items())

    def wait_live(self, balanced: bool) -> ClusterView:
        """Waits until everything is live; returns the leaders."""
        if balanced:
            self.trio.elect_preferred()
        self.trio.wait_until(self.trio.is_in_sync, FINISH_SECONDS * self.deadline_factor, self.trio.fetch_views)
        found: list[ClusterView | None] = []

        def is_agreed() -> bool:
            found.append(self.trio.agreed_view())
            return found[-1] is not None

        self.trio.wait_until(is_agreed, FINISH_SECONDS * self.deadline_factor, self.trio.fetch_views)
        assert found[-1] is not None
        return found[-1]

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.trio.wait_until(lambda: time.monotonic() >= end, seconds + 5, lambda: "a pause")

    def run_fault(self, fault: ChaosFault) -> None:
        """Runs one fault from its begin until everything is live again."""
        view = self.wait_live(fault.starts_balanced)
        # A coordinator that has just moved writes to the bucket before it serves: a fault begins after that.
        before = self.next_numbers()
        self.trio.wait_until(
            lambda: self.acked_since(before), FINISH_SECONDS * self.deadline_factor, lambda: self.missing_acks(before)
        )
        scene = FaultContext(self.trio, view, self.pause)
        began = time.monotonic()
        fault.begin(scene)
        sent = self.next_numbers()  # from now on: what was under way may still be acknowledged
        if fault.stays_available:
            self.trio.wait_until(
                lambda: self.acked_since(sent),
                fault.acks_within * self.deadline_factor,
                lambda: (fault.name, self.missing_acks(sent)),
            )
        self.pause(max(0.0, began + fault.min_seconds - time.monotonic()))
        mended = time.monotonic()
        fault.mend(scene)
        sent = self.next_numbers()
        late: list[str] = []
        self.trio.wait_until(
            lambda: self.is_live(sent, mended + SAY_AFTER_SECONDS, late),
            fault.deadline * self.deadline_factor,
            lambda: (fault.name, self.missing_acks(sent), self.trio.fetch_views()),
        )
        ended = time.monotonic()
        led = {place for node in scene.targets for place in scene.view.partitions_led_by(node)}
        gaps = self.ack_gaps(began, ended)
        row = FaultResult(
            fault.name,
            scene.targets,
            tuple(gap for place, gap in gaps.items() if place in led),
            tuple(gap for place, gap in gaps.items() if place not in led),
            ended - mended,
        )
        self.rows.append(row)
        worst = max(gaps.values())
        self.say(
            f"{fault.name} (brokers {scene.targets}): no ack {worst:.2f} s, "
            f"live again after {row.recovery_seconds:.1f} s"
        )
        for each in late:
            self.say(f"  after {SAY_AFTER_SECONDS:g} s: {each}")

    def is_live(self, sent: Mapping[tuple[int, PartitionKey], int], late_at: float, late: list[str]) -> bool:
        """True if everything is live again; the parts that are not at `late_at` go into `late`, once."""
        acked = self.acked_since(sent)
        live = acked and self.trio.is_in_sync()
        if not live and not late and time.monotonic() >= late_at:
            late += self.unsettled() if acked else self.missing_acks(sent)
        return live

    def unsettled(self) -> list[str]:
        """Returns what each broker says of the partitions that are not in sync."""
        return [
            f"broker {node} {'does not reply' if view is None else 'says: ' + view.describe_unsettled()}"
            for node, view in self.trio.fetch_views().items()
        ]

    def missing_acks(self, sent: Mapping[tuple[int, PartitionKey], int]) -> list[str]:
        """Returns the partitions without an acknowledgement."""
        return [
            f"{self.writers[i].name} {place}: no ack of {number} or later"
            for (i, place), number in sent.items()
            if not any(each >= number for each, _ in self.writers[i].acked[place][-5000:])
        ]

    def ack_gaps(self, began: float, ended: float) -> dict[PartitionKey, float]:
        """Returns the longest time without an acknowledgement of each partition, of writers that write to all
        partitions continuously."""
        times: dict[PartitionKey, list[float]] = {}
        for each in [each for each in self.writers if each.next_numbers()]:
            for place, when in list(each.times.items()):
                times.setdefault(place, []).extend(when)
        return {place: longest_gap(sorted(when), began, ended) for place, when in times.items()}


def longest_gap(times: list[float], began: float, ended: float) -> float:
    """Returns the longest gap between two of `times` (sorted), or between one of these and `ended`, that ends after
    `began`."""
    points = [*[each for each in times if each <= began][-1:], *[each for each in times if began < each < ended], ended]
    return max((b - a for a, b in pairwise(points)), default=ended - began)


def run(
    directory: Path,
    store: str,
    faults: Iterable[ChaosFault],
    settings: Mapping[str, str],
    *,
    has_java: bool,
    rate: float = RATE,
    deadline_factor: float = 1.0,
    topic: Mapping[str, str] | None = None,
    resent_allowed: str = "",
    program: Program = THIS_PROGRAM,
    processes: int = 1,
    flushes_to_bucket: bool = False,
    say: Callable[[str], None] = print,
) -> ChaosReport:
    """Runs faults one after the other while clients write `rate` records a second and partition; then stops everything
    and audits it. `deadline_factor` multiplies all deadlines before the audit, and `topic` has settings of topics.
    `resent_allowed` is the reason for which a client may repeat records under a new producer epoch, if it may. The
    brokers begin with `program`. With `processes` there are three machines of that many brokers. With
    `flushes_to_bucket` all topics have `flush=bucket`, and one more topic has a single replica."""
    began = time.monotonic()
    report = ChaosReport(store)
    with ExitStack() as stack:
        if flushes_to_bucket:
            settings = {**settings, **OF_BUCKET_FLUSH}
        three = stack.enter_context(chaos_cluster(directory, store, settings, program, processes))
        three.create(TOPIC, PARTITIONS, topic or {})
        for name in (TRANSACTIONS_TOPIC, COPIES_TOPIC):
            three.create(name, TRANSACTIONS_PARTITIONS, topic or {})
        three.create(COMPACTED_TOPIC, COMPACTED_PARTITIONS, COMPACTED)
        if has_java:
            three.create(JAVA_TOPIC, JAVA_PARTITIONS, topic or {})
        if flushes_to_bucket:
            three.create(ALONE_TOPIC, ALONE_PARTITIONS, {**(topic or {}), **ALONE}, replicas=1)
        writers: list[Writer] = [
            ConfluentWriter(name, three.address, TOPIC, PARTITIONS, directory, rate=rate) for name in ("a", "b")
        ]
        keyed = ConfluentWriter(
            "k", three.address, COMPACTED_TOPIC, COMPACTED_PARTITIONS, directory, rate=rate, keys=KEYS
        )
        transactional = [
            TransactionalWriter(name, three.address, TRANSACTIONS_TOPIC, TRANSACTIONS_PARTITIONS, directory)
            for name in ("t", "u")
        ]
        topics = (TRANSACTIONS_TOPIC, COPIES_TOPIC)
        chain = CopierChain(three.address, topics, TRANSACTIONS_PARTITIONS, directory)
        writers += [keyed, *transactional, chain]
        if flushes_to_bucket:
            writers.append(ConfluentWriter("l", three.address, ALONE_TOPIC, ALONE_PARTITIONS, directory, rate=rate))
        if has_java:
            verifiable = VerifiableWriter(7, three.address, JAVA_TOPIC, directory)
            stack.callback(verifiable.kill)
            writers.append(verifiable)
        under_way = ChaosRun(three, writers, deadline_factor, say)
        report.rows = under_way.rows
        three.wait_until(
            lambda: all(each.acked for each in writers), FINISH_SECONDS * deadline_factor, lambda: "a first ack"
        )
        for fault in faults:
            try:
                under_way.run_fault(fault)
            except AssertionError as error:
                report.failures.append(str(error))
            report.failures += [trouble for each in writers for trouble in each.failures]
            if report.failures:
                say("\n".join(report.failures))
                three.heal()
                break
        topics_written = [(TOPIC, PARTITIONS)]
        topics_written += [(JAVA_TOPIC, JAVA_PARTITIONS)] if has_java else []
        topics_written += [(ALONE_TOPIC, ALONE_PARTITIONS)] if flushes_to_bucket else []
        _audit(three, writers, keyed, transactional, chain, report, topics_written)
    report.findings.resent_allowed = resent_allowed
    report.seconds = time.monotonic() - began
    return report


def _audit(
    three: ChaosCluster,
    writers: list[Writer],
    keyed: ConfluentWriter,
    transactional: list[TransactionalWriter],
    chain: CopierChain,
    report: ChaosReport,
    topics: list[tuple[str, int]],
) -> None:
    """Reads everything back. `topics` are those of plain writers, with their numbers of partitions."""
    for each in writers:
        if each is not chain:
            each.finish(FINISH_SECONDS)
    try:
        three.wait_until(three.is_in_sync, FINISH_SECONDS, three.fetch_views)
    except AssertionError as error:
        report.failures.append(str(error))
    sources = [(TRANSACTIONS_TOPIC, number) for number in range(TRANSACTIONS_PARTITIONS)]
    committed, _ = read_all(three.address, sources, READ_SECONDS)
    chain.wait_copied({place[1]: records[-1][0] + 1 for place, records in committed.items() if records}, FINISH_SECONDS)
    chain.finish(FINISH_SECONDS)
    report.failures += [trouble for each in writers for trouble in each.failures if trouble not in report.failures]
    report.acked = {each.name: sum(map(len, each.acked.values())) for each in writers if each is not chain}
    report.transactions = {
        outcome: sum(list(each.outcomes.values()).count(outcome) for each in transactional)
        for outcome in TransactionOutcome
    }
    report.copied = sum(chain.next_numbers().values())
    places = [(topic, number) for topic, partitions in topics for number in range(partitions)]
    places += sources
    copies = [(COPIES_TOPIC, number) for number in range(TRANSACTIONS_PARTITIONS)]
    compacted = [(COMPACTED_TOPIC, number) for number in range(COMPACTED_PARTITIONS)]
    logs, bounds = read_all(three.address, [*places, *copies, *compacted], READ_SECONDS)
    report.read = sum(map(len, logs.values()))
    report.epoch_bumps = [f"{each.name}: {why}" for each in writers for why in each.epoch_bumps]
    codes = three.stop()
    if set(codes.values()) != {0}:
        report.failures.append(f"exit codes {codes}")
    those: dict[int, dict[PartitionKey, list[StoredBatch]]] = {}
    for node in NODES:  # a machine holds one replica of a partition
        held = [read_log_batches(directory) for directory in three.brokers[node].directories]
        found = {place: log for each in held for place, log in each.items()}
        those[node] = {place: log for place, log in found.items() if place[0] != ALONE_TOPIC}
        if len(found) < sum(map(len, held)):
            report.failures.append(
                f"two processes of machine {node} hold a partition: {[sorted(each) for each in held]}"
            )
    with patch.dict(os.environ, three.environment):
        compared = [place for place in places if place[0] != ALONE_TOPIC]
        bucket = asyncio.run(read_cold_batches(three.store, compared))
    sender = producer_lookup([*those.values(), {place: part.batches for place, part in bucket.items()}])
    acked = {each.name: each.acked for each in writers if each not in (chain, keyed)}
    report.findings = check_records(acked, {place: logs[place] for place in places}, sender)
    report.findings.superseded = check_compacted(
        keyed.acked, {place: logs[place] for place in compacted}, KEYS, may_repeat=bool(keyed.epoch_bumps)
    )
    report.compacted = sum(map(len, keyed.acked.values())) - sum(len(logs[place]) for place in compacted)
    outcomes = {each.name: each.outcomes for each in transactional}
    size = EACH * TRANSACTIONS_PARTITIONS
    report.findings.halves = check_transactions(outcomes, size, [logs[place] for place in sources])
    report.findings.uncopied = check_copies(
        {place[1]: logs[place] for place in sources}, {place[1]: logs[place] for place in copies}
    )
    report.batches = compare_brokers(those, report.findings)
    report.cold = compare_cold(those, bucket, bounds, report.findings)
