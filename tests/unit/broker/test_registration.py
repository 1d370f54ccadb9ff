"""What a start believes of its data directory, and what it still has to tell of a log that it cannot prove whole."""

from __future__ import annotations

import pytest

from tests.unit.hot.fixtures import TOPIC_ID
from tiered.broker.data_directory import DirectoryState
from tiered.broker.registration import can_lead, discard_untrusted
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.segments import Segment
from tiered.hot.synced_logs import NO_SYNCED_LOGS, SyncedLogsContent
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import BrokerImage, PartitionImage

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
def test_a_log_stays_in_doubt_until_somebody_else_leads(what: str, now: PartitionImage | None, stays: bool) -> None:
    assert can_lead(now, 1) is stays, what


CLEAN = CleanLogEntry(TOPIC_ID, 0, False, (), Segment(0, 0, 0, 0), b"", b"", 0)


def found(**changes: object) -> DirectoryState:
    made = DirectoryState(
        "d", True, True, {AT: 5}, {}, {AT: CLEAN}, SyncedLogsContent(("last",), {AT: TopicId(TOPIC_ID)})
    )
    return made._replace(**changes)  # type: ignore[arg-type]


def of(directory: str, incarnation: str = "last") -> BrokerImage:
    return BrokerImage(1, incarnation, directory, "", "", True, 0)


def test_directory_that_the_cluster_knows_is_believed() -> None:
    assert discard_untrusted(of("d"), found()) == (found(), True)


def test_nothing_that_another_directory_says_of_its_logs_is_believed() -> None:
    """Neither that they are whole, nor what a clean stop said of small ones: all of them are read and checked."""
    what, known = discard_untrusted(of("d"), found(directory_id="e"))
    assert not known and not what.is_intact and not what.clean_entries and what.synced_logs == NO_SYNCED_LOGS
    assert what.recovery_points == {AT: 5}, "what was fsynced on it is there"


def test_note_of_synced_logs_is_void_once_another_process_ran_that_did_not_write_it() -> None:
    """As one of an older version does, under which the setting may have changed."""
    what, known = discard_untrusted(of("d", incarnation="older"), found())
    assert known and what == found(synced_logs=NO_SYNCED_LOGS)
    assert discard_untrusted(None, found()) == (found(synced_logs=NO_SYNCED_LOGS), True), (
        "nobody of this node ever registered"
    )
