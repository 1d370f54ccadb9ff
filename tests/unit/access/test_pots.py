"""The pots of a broker: their levels in metrics and in the health report, and a report of each refused holder."""

from __future__ import annotations

import json

import pytest

from tests.unit.hot.fixtures import FixedClock
from tiered.access import pots
from tiered.access.audit_log import AuditLog
from tiered.access.pots import REPEAT_NS, Pots
from tiered.errors import Code
from tiered.metrics import Metrics
from tiered.quotas.shares import Holdings, Pot, PotRefused

POT = Pot("seats", "seats.max", "seats", Code.THROTTLING_QUOTA_EXCEEDED)


class Site:
    """A broker's pots with one pot of eight seats, and the lines of its audit log."""

    def __init__(self) -> None:
        self.metrics, self.clock = Metrics(), FixedClock()
        audit = AuditLog(self.clock)
        self.lines: list[str] = []
        audit.subscribe(self.lines.append)
        self.pots = Pots(self.clock, self.metrics, audit)
        self.taken = 0
        self.holdings = self.pots.watch(Holdings(POT, lambda: 8, lambda: self.taken))

    def take(self, holder: str, count: int = 1) -> None:
        """Takes seats. Raises `PotRefused`."""
        self.holdings.check(holder, count)
        self.holdings.add(holder, count)
        self.taken += count

    def refuse(self, holder: str) -> None:
        """Is refused a seat."""
        with pytest.raises(PotRefused):
            self.take(holder)

    def read(self, name: str, *labels: str) -> float:
        """Returns a gauge of pots."""
        return self.metrics.gauge(name, "", ("pot", "holder")[: len(labels)]).value(*labels)


def test_level_and_largest_holder_stand_in_metrics() -> None:
    site = Site()
    site.take("User:alice", 5)
    site.take("User:bob")
    assert (site.read("tiered_pot_held", "seats"), site.read("tiered_pot_bound", "seats")) == (6, 8)
    assert site.read("tiered_pot_largest", "seats", "User:alice") == 5
    assert site.read("tiered_pot_largest", "seats", "User:bob") == 0


def test_scarce_pot_is_a_problem_that_names_the_largest_holder() -> None:
    site = Site()
    site.take("User:alice", 6)
    assert list(site.pots.describe()) == []
    site.take("User:bob")
    assert list(site.pots.describe()) == [
        "7 of 8 seats are taken (seats.max), 6 of them by User:alice: a holder that has 1 or more gets no more"
    ]


def test_scarce_pot_of_unknown_holders_is_a_problem_too() -> None:
    site = Site()
    site.take("", 8)
    (found,) = site.pots.describe()
    assert found == "8 of 8 seats are taken (seats.max): a holder that has 1 or more gets no more"


def test_refused_holder_has_one_audit_line_in_ten_minutes() -> None:
    site = Site()
    site.take("User:alice", 6)
    for _ in range(3):
        site.refuse("User:alice")
    site.take("User:bob")
    site.refuse("User:bob")
    found = [json.loads(line) for line in site.lines]
    assert [(each["event"], each["outcome"], each["pot"], each["holder"]) for each in found] == [
        ("share", "refused", "seats", "User:alice"),
        ("share", "refused", "seats", "User:bob"),
    ]
    assert found[0]["why"].startswith("6 of 8 seats are taken (seats.max), User:alice has 6")
    assert site.metrics.counter("tiered_pot_refusals_total", "", ("pot",)).value("seats") == 4
    site.clock.wall += REPEAT_NS // 10**6
    site.refuse("User:alice")
    site.refuse("User:alice")
    assert len(site.lines) == 3


def test_remembered_reports_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pots, "REPORTED_MAX", 1)
    site = Site()
    site.take("", 8)
    for holder in ("a", "b", "a"):
        site.refuse(holder)
    assert [json.loads(line)["holder"] for line in site.lines] == ["a", "b", "a"]
