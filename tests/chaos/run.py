"""A run: brokers and clients, one fault after the other, then the audit."""

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

from tests.chaos.audit import Findings, Place, judge, read
from tests.chaos.copies import cold, compare, compare_cold, copies, senders
from tests.chaos.faults import Fault, Scene
from tests.chaos.trio import NODES, Trio, trio
from tests.chaos.views import View
from tests.chaos.writers import RATE, Confluent, Verifiable, Writer

TOPIC, PARTITIONS = "chaos", 6
JAVA_TOPIC, JAVA_PARTITIONS = "java", 3
FINISH_SECONDS = 60.0
READ_SECONDS = 90.0
LATE_SECONDS = 5.0
"""What is not live by then is said, also where it is in time."""


@dataclass(frozen=True)
class Row:
    """What a fault did. Seconds: the longest time without an ack of a partition that a broker led which was hit (worst
    and median of these), of any other (worst), and from the mend until everything was live again."""

    name: str
    hit: tuple[int, ...]
    led: tuple[float, ...]
    others: tuple[float, ...]
    live_again: float


@dataclass
class Report:
    """A whole run."""

    store: str
    rows: list[Row] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    acked: dict[str, int] = field(default_factory=dict)
    read: int = 0
    batches: int = 0
    cold: int = 0
    bumps: list[str] = field(default_factory=list)
    """Why clients began new producer epochs by themselves."""
    seconds: float = 0.0

    @property
    def well(self) -> bool:
        return self.findings.well and not self.troubles

    def __str__(self) -> str:
        head = "| Fault | Brokers hit | No ack, led there: worst | median | elsewhere: worst | Live again after |"
        lines = [f"store {self.store}, {self.seconds:.0f} s", "", head, "| --- | --- | ---: | ---: | ---: | ---: |"]
        for row in self.rows:
            hit = ", ".join(map(str, row.hit)) or "-"
            worst = f"{max(row.led):.2f} s" if row.led else "-"
            middle = f"{median(row.led):.2f} s" if row.led else "-"
            others = f"{max(row.others):.2f} s" if row.others else "-"
            lines.append(f"| {row.name} | {hit} | {worst} | {middle} | {others} | {row.live_again:.1f} s |")
        acked = ", ".join(f"{name} {count:,}" for name, count in self.acked.items())
        lines += [
            "",
            f"acknowledged: {acked}; read back {self.read:,}; batches of three copies compared {self.batches:,}, with"
            f" those of the bucket {self.cold:,}",
        ]
        bumps = [f"new producer epoch: {each}" for each in self.bumps[:20]]
        return "\n".join([*lines, str(self.findings), *bumps, *self.troubles[:20]])


class Run:
    """The parts of a run that is under way."""

    def __init__(self, three: Trio, writers: list[Writer], patience: float, say: Callable[[str], None]) -> None:
        self.trio = three
        self.patience = patience
        self.writers = writers
        self.say = say
        self.rows: list[Row] = []

    def sent(self) -> dict[tuple[int, Place], int]:
        return {(i, place): count for i, each in enumerate(self.writers) for place, count in each.sent().items()}

    def acked_since(self, sent: Mapping[tuple[int, Place], int]) -> bool:
        """Whether each writer got an ack in each partition for what it sent later."""
        last = {
            (i, place): answers[-1][0]
            for i, each in enumerate(self.writers)
            for place, answers in list(each.acked.items())
            if answers
        }
        return all(last.get(place, -1) >= number for place, number in sent.items())

    def settle(self, balanced: bool) -> View:
        """Waits until all is live; who leads what then."""
        if balanced:
            self.trio.balance()
        self.trio.until(self.trio.whole, FINISH_SECONDS, self.trio.views)
        found: list[View | None] = []

        def seen() -> bool:
            found.append(self.trio.view())
            return found[-1] is not None

        self.trio.until(seen, FINISH_SECONDS, self.trio.views)
        assert found[-1] is not None
        return found[-1]

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.trio.until(lambda: time.monotonic() >= end, seconds + 5, lambda: "a pause")

    def through(self, fault: Fault) -> None:
        """One fault from begin to all live again."""
        scene = Scene(self.trio, self.settle(fault.balanced), self.pause)
        began = time.monotonic()
        fault.begin(scene)
        sent = self.sent()  # from now on: what was under way may still be acknowledged
        if fault.goes_on:
            self.trio.until(
                lambda: self.acked_since(sent),
                fault.acks_within * self.patience,
                lambda: (fault.name, self.behind(sent)),
            )
        self.pause(max(0.0, began + fault.lasts - time.monotonic()))
        mended = time.monotonic()
        fault.mend(scene)
        sent = self.sent()
        late: list[str] = []
        self.trio.until(
            lambda: self.live(sent, mended + LATE_SECONDS, late),
            fault.deadline * self.patience,
            lambda: (fault.name, self.behind(sent), self.trio.views()),
        )
        ended = time.monotonic()
        led = {place for node in scene.hit for place in scene.view.led_by(node)}
        gaps = self.gaps(began, ended)
        row = Row(
            fault.name,
            scene.hit,
            tuple(gap for place, gap in gaps.items() if place in led),
            tuple(gap for place, gap in gaps.items() if place not in led),
            ended - mended,
        )
        self.rows.append(row)
        worst = max(gaps.values())
        self.say(f"{fault.name} (brokers {scene.hit}): no ack {worst:.2f} s, live again after {row.live_again:.1f} s")
        for each in late:
            self.say(f"  after {LATE_SECONDS:g} s: {each}")

    def live(self, sent: Mapping[tuple[int, Place], int], late_at: float, late: list[str]) -> bool:
        """Whether all is live again; what still is not at `late_at` is put into `late`, once."""
        acked = self.acked_since(sent)
        live = acked and self.trio.whole()
        if not live and not late and time.monotonic() >= late_at:
            late += [str(self.trio.views())] if acked else self.behind(sent)
        return live

    def behind(self, sent: Mapping[tuple[int, Place], int]) -> list[str]:
        """What is waited for."""
        return [
            f"{self.writers[i].name} {place}: no ack of {number} or later"
            for (i, place), number in sent.items()
            if not any(each >= number for each, _ in self.writers[i].acked[place][-5000:])
        ]

    def gaps(self, began: float, ended: float) -> dict[Place, float]:
        """The longest time without an ack of each partition, of those writers that write to all all the time."""
        times: dict[Place, list[float]] = {}
        for each in [each for each in self.writers if each.sent()]:
            for place, when in list(each.times.items()):
                times.setdefault(place, []).extend(when)
        return {place: longest(sorted(when), began, ended) for place, when in times.items()}


def longest(times: list[float], began: float, ended: float) -> float:
    """The longest time between two of `times` (sorted), or one of these and `ended`, that reaches past `began`."""
    points = [*[each for each in times if each <= began][-1:], *[each for each in times if began < each < ended], ended]
    return max((b - a for a, b in pairwise(points)), default=ended - began)


def run(
    directory: Path,
    store: str,
    faults: Iterable[Fault],
    settings: Mapping[str, str],
    *,
    has_java: bool,
    rate: float = RATE,
    patience: float = 1.0,
    topic: Mapping[str, str] | None = None,
    resent_allowed: str = "",
    say: Callable[[str], None] = print,
) -> Report:
    """Faults one after the other while clients write, `rate` records a second and partition; then everything is stopped
    and judged. Deadlines of faults are `patience` times as long. `topic`: settings of
    topics; `resent_allowed`: why a client may send something again under a new producer epoch, if it may."""
    began = time.monotonic()
    report = Report(store)
    with ExitStack() as stack:
        three = stack.enter_context(trio(directory, store, settings))
        three.create(TOPIC, PARTITIONS, topic or {})
        if has_java:
            three.create(JAVA_TOPIC, JAVA_PARTITIONS, topic or {})
        writers: list[Writer] = [
            Confluent(name, three.address, TOPIC, PARTITIONS, directory, rate=rate) for name in ("a", "b")
        ]
        if has_java:
            verifiable = Verifiable(7, three.address, JAVA_TOPIC, directory)
            stack.callback(verifiable.kill)
            writers.append(verifiable)
        under_way = Run(three, writers, patience, say)
        report.rows = under_way.rows
        three.until(lambda: all(each.acked for each in writers), 60, lambda: "a first ack")
        for fault in faults:
            try:
                under_way.through(fault)
            except AssertionError as error:
                report.troubles.append(str(error))
            report.troubles += [trouble for each in writers for trouble in each.troubles]
            if report.troubles:
                say("\n".join(report.troubles))
                three.heal()
                break
        _audit(three, writers, report, has_java)
    report.findings.resent_allowed = resent_allowed
    report.seconds = time.monotonic() - began
    return report


def _audit(three: Trio, writers: list[Writer], report: Report, has_java: bool) -> None:
    for each in writers:
        each.finish(FINISH_SECONDS)
    report.troubles += [trouble for each in writers for trouble in each.troubles if trouble not in report.troubles]
    report.acked = {each.name: sum(map(len, each.acked.values())) for each in writers}
    try:
        three.until(three.whole, FINISH_SECONDS, three.views)
    except AssertionError as error:
        report.troubles.append(str(error))
    places = [(TOPIC, number) for number in range(PARTITIONS)]
    places += [(JAVA_TOPIC, number) for number in range(JAVA_PARTITIONS)] if has_java else []
    logs, bounds = read(three.address, places, READ_SECONDS)
    report.read = sum(map(len, logs.values()))
    report.bumps = [f"{each.name}: {why}" for each in writers for why in each.bumps]
    codes = three.stop()
    if set(codes.values()) != {0}:
        report.troubles.append(f"exit codes {codes}")
    those = {node: copies(three.brokers[node].directory) for node in NODES}
    with patch.dict(os.environ, three.environment):
        bucket = asyncio.run(cold(three.store, places))
    sender = senders([*those.values(), {place: part.batches for place, part in bucket.items()}])
    report.findings = judge({each.name: each.acked for each in writers}, logs, sender)
    report.batches = compare(those, report.findings)
    report.cold = compare_cold(those, bucket, bounds, report.findings)
