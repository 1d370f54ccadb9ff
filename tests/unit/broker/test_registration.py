"""Tests of a start: how far it trusts its data directory, and which losses it reports of logs that are not proved
whole."""

from __future__ import annotations

import pytest

from tests.unit.hot.fixtures import TOPIC_ID
from tiered.broker.registration import can_lead, discard_untrusted
from tiered.durability.data_directory import DirectoryState
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.segments import Segment
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.brokers import BrokerImage
from tiered.metadata.parts.topics import PartitionImage

AT = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("what", "now", "stays"),
    [
        ("it leads", PartitionImage((1, 2), leader=1, isr=(1,)), True),
        ("nobody leads yet, and it may again", PartitionImage((1, 2), leader=NO_LEADER, elr=(1,)), True),
        ("its log follows another one's now", PartitionImage((1, 2), leader=2, isr=(2,)), False),
        ("the topic is gone", None, False),
    ],
)
def test_log_stays_suspect_until_another_broker_leads(what: str, now: PartitionImage | None, stays: bool) -> None:
    assert can_lead(now, 1) is stays, what


CLEAN = CleanLogEntry(TOPIC_ID, 0, False, (), Segment(0, 0, 0, 0), b"", b"", 0)


def found(**changes: object) -> DirectoryState:
    made = DirectoryState(
        "d",
        True,
        True,
        {AT: 5},
        {},
        {AT: CLEAN},
        frozenset({(AT, TopicId(TOPIC_ID))}),
        ("last",),
        "last",
    )
    return made._replace(**changes)  # type: ignore[arg-type]


def of(directory: str, incarnation: str = "last") -> BrokerImage:
    return BrokerImage(1, incarnation, directory, "", "", True, 0)


def test_directory_that_the_cluster_knows_is_trusted() -> None:
    assert discard_untrusted(of("d"), found()) == (found(), True)


def test_entries_of_another_directory_are_not_trusted() -> None:
    """Neither their proofs nor the entries of a clean stop count: all logs are read and checked."""
    what, known = discard_untrusted(of("d"), found(directory_id="e"))
    assert not known and not what.is_intact and not what.clean_entries and not what.synced_logs
    assert what.recovery_points == {AT: 5}, "what was fsynced on it is there"


NOTHING = {
    "same_boot": False,
    "clean": False,
    "clean_entries": {},
    "synced_logs": frozenset[object](),
    "incarnations": (),
}


@pytest.mark.parametrize("last", [of("d", incarnation="another"), None])
def test_marks_and_notes_are_void_unless_they_name_the_last_process(last: BrokerImage | None) -> None:
    """The other process ran on another copy of the directory, or this one never registered."""
    assert discard_untrusted(last, found()) == (found(**NOTHING), True)
    unnamed = found(incarnations=(), clean_incarnation="")
    assert discard_untrusted(last, unnamed)[0].is_intact is False, "Kafka's mark names none"


def test_each_mark_is_believed_by_itself() -> None:
    what, _ = discard_untrusted(of("d"), found(clean_incarnation="one"))
    assert what.same_boot and not what.clean and not what.clean_entries
    what, _ = discard_untrusted(of("d"), found(incarnations=("one",)))
    assert not what.same_boot and not what.synced_logs and what.clean and what.clean_entries


def test_proof_names_the_last_process_first_of_those_that_may_be_it() -> None:
    """The next start leaves out the ends of a long list."""
    what, _ = discard_untrusted(of("d"), found(incarnations=("newer", "last", "before")))
    assert what.incarnations == ("last", "newer", "before")
