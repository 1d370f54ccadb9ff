"""The audit log: lines of JSON, at a bounded rate, that no text of a client breaks."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tiered.access.audit_log import (
    CHANGES_PER_SECOND,
    CUT,
    DETAIL_MAX,
    HOLDERS_PER_SECOND,
    LINES_PER_SECOND,
    LOGGER,
    TEXT_MAX,
    UNKNOWN,
    AuditLog,
    LineLimiter,
)
from tiered.controller.change_descriptions import DescribedChange
from tiered.errors import Refused
from tiered.security.acls import Operation, ResourceType
from tiered.security.principal import ANONYMOUS, Caller, Principal
from tiered_api.cli.broker.log_output import open_audit_log

ALICE = Caller(Principal("User", "alice"), "10.0.0.1")
KIND = ("login", "refused")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Yields the logger, and restores it."""
    found = logging.getLogger(LOGGER)
    before = list(found.handlers), found.level, found.propagate
    yield found
    for each in found.handlers[len(before[0]) :]:
        each.close()
    found.handlers, found.propagate = before[0], before[2]
    found.setLevel(before[1])


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Returns the events of the log."""
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


def test_event_has_what_was_asked_by_whom(caplog: pytest.LogCaptureFixture, logger: logging.Logger) -> None:
    audit = AuditLog(SimClock(SimLoop(1)))
    with caplog.at_level(logging.INFO, LOGGER):
        audit.record_login(ALICE, "SCRAM-SHA-512", "CLIENT")
        audit.record_login(ALICE._replace(by_token=True), "SCRAM-SHA-256", "CLIENT")
        audit.record_certificate(Caller(ANONYMOUS, "10.0.0.1"), "TLS")
        audit.record_refused_login("2001:db8::7", "CLIENT", "no", "bob")
        audit.record_refusal(ALICE, Operation.WRITE, ResourceType.TOPIC, 'a"\n\u202e' + "x" * 1000)
    at = {"time": "2023-11-14T22:13:20.000+00:00"}
    who = {"principal": "User:alice", "host": "10.0.0.1"}
    name = 'a"\n\u202e' + "x" * (TEXT_MAX - 7) + CUT
    assert events(caplog) == [
        {**at, "event": "login", "outcome": "allowed", **who, "mechanism": "SCRAM-SHA-512", "listener": "CLIENT"},
        {
            **at, "event": "login", "outcome": "allowed", **who, "proof": "delegation token",
            "mechanism": "SCRAM-SHA-256", "listener": "CLIENT",
        },
        {
            **at, "event": "login", "outcome": "refused", "host": "2001:db8::7", "listener": "CLIENT", "why": "no",
            "claimed_user": "bob",
        },
        {
            **at, "event": "operation", "outcome": "refused", **who, "operation": "WRITE", "resource_type": "TOPIC",
            "resource_name": name,
        },
    ]  # fmt: skip
    assert all(record.getMessage().isascii() and record.getMessage().isprintable() for record in caplog.records)


def test_flood_of_a_holder_gets_a_bounded_number_of_lines_and_a_count() -> None:
    limiter = LineLimiter()
    admitted = [limiter.admit(KIND, "alice", 0) for _ in range(1000)]
    assert admitted == [0] * LINES_PER_SECOND + [None] * (1000 - LINES_PER_SECOND)
    assert limiter.admit(("login", "allowed"), "alice", 0) == 0, "another kind has its own lines"
    assert limiter.admit(KIND, "alice", 999_999_999) is None
    assert limiter.admit(KIND, "bob", 999_999_999) == 1001 - LINES_PER_SECOND, "another holder has its own lines"
    assert limiter.admit(KIND, "alice", 10**9) == 0
    for _ in range(LINES_PER_SECOND + 1):
        limiter.admit(KIND, "alice", 10**9)
    assert limiter.take_suppressed() == {KIND: 2} and not limiter.take_suppressed()


def test_limiter_keeps_a_bounded_number_of_holders() -> None:
    limiter = LineLimiter()
    admitted = [limiter.admit(KIND, f"holder {each}", 0) for each in range(HOLDERS_PER_SECOND + 5)]
    assert admitted == [0] * HOLDERS_PER_SECOND + [None] * 5
    assert limiter.admit(KIND, "holder 0", 0) == 5, "those with a line have more"
    assert limiter.admit(KIND, "a super user", 0, None) == 0


def test_flood_of_logins_hides_neither_a_super_user_nor_another_address(
    caplog: pytest.LogCaptureFixture, logger: logging.Logger
) -> None:
    """A tenant that logs in and out all the time took the lines of the administrator."""
    audit = AuditLog(SimClock(SimLoop(1)), frozenset({"User:admin"}))
    admin, bob = (Caller(Principal("User", name), "10.0.0.2") for name in ("admin", "bob"))
    with caplog.at_level(logging.INFO, LOGGER):
        for number in range(500):
            audit.record_login(ALICE, "PLAIN", "CLIENT")
            audit.record_refused_login("10.0.0.1", "CLIENT", "no")
            if number % 10 == 0:
                audit.record_login(admin, "PLAIN", "CLIENT")
        audit.record_login(bob, "PLAIN", "CLIENT")
        audit.record_refused_login("10.0.0.9", "CLIENT", "no")
    found = Counter(each.get("principal") or each["host"] for each in events(caplog))
    flood = LINES_PER_SECOND
    assert found == {"User:alice": flood, "User:admin": 50, "User:bob": 1, "10.0.0.1": flood, "10.0.0.9": 1}


def test_changes_have_their_resource_and_outcome(caplog: pytest.LogCaptureFixture, logger: logging.Logger) -> None:
    audit = AuditLog(SimClock(SimLoop(1)))
    with caplog.at_level(logging.INFO, LOGGER):
        audit.record_changes(ALICE, [DescribedChange("DELETE", "TOPIC", "orders")])
        audit.record_changes(ALICE, [DescribedChange("ALTER", "QUOTA", "user=bob", "x=1")], UNKNOWN)
    who = {"time": "2023-11-14T22:13:20.000+00:00", "event": "change", "principal": "User:alice", "host": "10.0.0.1"}
    assert events(caplog) == [
        {**who, "outcome": "done", "operation": "DELETE", "resource_type": "TOPIC", "resource_name": "orders"},
        {
            **who, "outcome": "unknown", "operation": "ALTER", "resource_type": "QUOTA", "resource_name": "user=bob",
            "detail": "x=1",
        },
    ]  # fmt: skip


def test_change_behind_many_others_is_named_in_a_shared_line(
    caplog: pytest.LogCaptureFixture, logger: logging.Logger
) -> None:
    """Once, `suppressed` counted it, and no line said what was deleted."""
    audit = AuditLog(SimClock(SimLoop(1)))
    deleted = [f"own-{number}" for number in range(CHANGES_PER_SECOND + 1000)] + ["orders-0"]
    with caplog.at_level(logging.INFO, LOGGER):
        for name in deleted:
            audit.record_changes(ALICE, [DescribedChange("DELETE", "TOPIC", name, "records below 7")])
        audit.write_folded()
    found = events(caplog)
    assert [name for each in found for name in (each.get("resource_names") or [each["resource_name"]])] == deleted
    assert {(each["principal"], each["operation"], each.get("suppressed")) for each in found} == {
        ("User:alice", "DELETE", None)
    }
    assert len(found) < CHANGES_PER_SECOND + 10, "lines are bounded by the names that they have"


def test_long_detail_of_a_change_ends_in_a_mark(caplog: pytest.LogCaptureFixture, logger: logging.Logger) -> None:
    audit = AuditLog(SimClock(SimLoop(1)))
    with caplog.at_level(logging.INFO, LOGGER):
        for size in (DETAIL_MAX, DETAIL_MAX + 1):
            audit.record_changes(ALICE, [DescribedChange("ALTER", "TOPIC", "orders", "x" * size)])
    details = [each["detail"] for each in events(caplog)]
    assert details == ["x" * DETAIL_MAX, "x" * (DETAIL_MAX - len(CUT)) + CUT]


def test_count_of_a_flood_is_written_at_the_end(caplog: pytest.LogCaptureFixture, logger: logging.Logger) -> None:
    audit = AuditLog(SimClock(SimLoop(1)))
    with caplog.at_level(logging.INFO, LOGGER):
        for _ in range(LINES_PER_SECOND + 5):
            audit.record_refused_login("10.0.0.1", "CLIENT", "no")
        audit.write_counts()
    assert [each.get("suppressed") for each in events(caplog)] == [None] * LINES_PER_SECOND + [5]


def test_events_go_to_their_file_and_to_a_new_one_after_a_move(tmp_path: Path, logger: logging.Logger) -> None:
    file = tmp_path / "audit"
    open_audit_log(str(file))
    audit = AuditLog(SimClock(SimLoop(1)))
    audit.record_login(ALICE, "PLAIN", "CLIENT")
    file.rename(tmp_path / "audit.1")
    audit.record_refused_login("10.0.0.1", "CLIENT", "no")
    assert json.loads((tmp_path / "audit.1").read_text())["outcome"] == "allowed"
    assert json.loads(file.read_text())["outcome"] == "refused"


def test_file_that_cannot_be_opened_is_refused(tmp_path: Path, logger: logging.Logger) -> None:
    with pytest.raises(Refused, match=r"tiered\.audit\.file=.*it cannot be opened"):
        open_audit_log(str(tmp_path / "absent" / "audit"))
