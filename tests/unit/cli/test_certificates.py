"""Tests of `tiered cluster certificates`: rows for each listener, and for brokers that report none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tiered.security.certificates import DAY_MS
from tiered_api.cli.cluster.certificates import certificate_rows, print_certificates
from tiered_api.cli.exits import Exit
from tiered_api.health.view import FENCED, LIVE, STOPPED, BrokerReport, BrokerSummary
from tiered_api.kafka.protocol.messages.describe_cluster import ReportedCertificate

NOW = 100 * DAY_MS
GOOD = ReportedCertificate("SSL", "CN=a", ["DNS:a", "IP:127.0.0.1"], 90 * DAY_MS, NOW + 30 * DAY_MS, "valid")


def live(*nodes: int) -> list[BrokerSummary]:
    return [BrokerSummary(node, LIVE) for node in nodes]


def test_each_listener_has_a_row_with_days_and_state(capfd: pytest.CaptureFixture[str]) -> None:
    rows = certificate_rows(live(1, 2), [BrokerReport(1, ("disk full",), certificates=(GOOD,))], NOW)
    assert rows[0] == {
        "broker": 1,
        "listener": "SSL",
        "subject": "CN=a",
        "names": ["DNS:a", "IP:127.0.0.1"],
        "not_before": "1970-04-01T00:00:00+00:00",
        "not_after": "1970-05-11T00:00:00+00:00",
        "days_left": 30,
        "state": "valid",
        "reason": "",
    }
    assert print_certificates(rows[:1], "text") == Exit.OK
    assert "DNS:a,IP:127.0.0.1" in capfd.readouterr().out
    assert print_certificates(rows, "json") == Exit.UNHEALTHY
    *_, unknown = map(json.loads, capfd.readouterr().out.splitlines())
    assert (unknown["broker"], unknown["state"]) == (2, "unknown")
    assert "needs DESCRIBE on the cluster" in unknown["reason"]


@pytest.mark.parametrize(
    ("report", "state", "days", "reason"),
    [
        (BrokerReport(1, ("does not report its health: gone",)), "unknown", None, "does not report its health: gone"),
        (BrokerReport(1, (), certificates=(replace(GOOD, rejected="no key"),)), "valid", 30, "no key"),
        (
            BrokerReport(1, (), certificates=(replace(GOOD, not_after_ms=NOW - 1, state="expired"),)),
            "expired",
            -1,
            "",
        ),
    ],
)
def test_anything_but_valid_and_used_is_unhealthy(
    report: BrokerReport, state: str, days: int | None, reason: str
) -> None:
    (row,) = rows = certificate_rows(live(1), [report], NOW)
    assert (row["state"], row["days_left"], row["reason"]) == (state, days, reason)
    assert print_certificates(rows, "json") == Exit.UNHEALTHY


def test_brokers_without_tls_have_no_rows(capfd: pytest.CaptureFixture[str]) -> None:
    assert print_certificates(certificate_rows(live(1), [BrokerReport(1, (), certificates=())], NOW), "text") == Exit.OK
    assert capfd.readouterr().out.startswith("BROKER  LISTENER  SUBJECT  NAMES")


@pytest.mark.parametrize("state", [FENCED, STOPPED])
def test_broker_that_is_not_live_has_a_row_and_is_unhealthy(state: str) -> None:
    brokers = [*live(1), BrokerSummary(2, state)]
    rows = certificate_rows(brokers, [BrokerReport(1, (), certificates=(GOOD,))], NOW)
    assert [(row["broker"], row["state"]) for row in rows] == [(1, "valid"), (2, "unknown")]
    assert rows[1]["reason"] == f"the broker is {state}"
    assert print_certificates(rows, "json") == Exit.UNHEALTHY
