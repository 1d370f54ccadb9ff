"""Tests of the health report of a broker: if it serves, its own problems, and those of others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.test_partition_health import ALONE, LACKS, NOBODY, WHOLE, T, cluster, made
from tests.unit.hot.fixtures import FixedClock, disk
from tiered.broker.health import FULL_DISK_MEND, LISTED_MAX, NAMED_MAX, Health, assess_health
from tiered.broker.stored_segments import UPLOAD_GRACE_MS
from tiered.cold.read_backoff import DamagedObject
from tiered.controller.partition_health import assess_partitions
from tiered.coordination.late_transactions import LateTransaction
from tiered.coordination.offsets_beyond_end import OffsetBeyondEnd
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.changes import BrokerDiskReported, BrokerRegistered, PartitionChanged, TopicCreated
from tiered.metadata.image import Image
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.metrics import Metrics
from tiered.object_store.metered import Outage
from tiered.replication.disk_state import DiskState
from tiered.time_text import format_time

NOW = FixedClock().wall_ms()
LATE = LateTransaction(TopicPartition("t", 0), 7, 12, NOW, "pay")


def disk_state() -> DiskState:
    return DiskState(disk(), FixedClock(), Metrics(), lambda why: None)


def report(image: Image | None = None, node_id: int = 1, **changes: Any) -> Health:
    """Returns the report of a broker that serves and has no problem but for `changes`."""
    image = image or cluster(WHOLE)
    given = {
        "failure": "", "started": True, "waits_for_store": False, "disk": disk_state(), "outage": None,
        "waiting_segments": 0, "copy_lag_ms": 0, "copy_lag_max_ms": 10_000, "pending_metadata": 0,
        "metadata_trouble": "", "pots": (), "process": (), "missing_keys": (), "certificates": (), "clocks": ((), ()),
        "fenced": (), "clock_comparisons": {}, "unserved": {}, "replicas": (), "replica_count": 0, "image": image,
        "partition_health": assess_partitions(image, node_id), "late_transactions": (), "beyond_ends": (),
        "holding": None, "uncleanable": {}, "damaged": (), "now_ms": NOW, "contact_lost": "",
    }  # fmt: skip
    return assess_health(**{**given, **changes})


def test_broker_that_serves_is_ok_and_has_no_problem() -> None:
    found = report()
    assert found.ok and not found.problems and not found.own_problems
    assert found.details["brokers"] == {"1": "live", "2": "live", "3": "fenced", "4": "stopped"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"failure": "no port"}, "the broker failed: no port"),
        ({"started": False, "waits_for_store": True}, "the broker waits for the bucket before it can serve"),
        ({"started": False}, "the broker is starting or stopping"),
    ],
)
def test_broker_that_does_not_serve_is_not_ok(changes: dict[str, Any], why: str) -> None:
    found = report(**changes)
    assert not found.ok and found.own_problems == [why]


def test_full_disk_leaves_a_broker_ok_and_a_dead_one_does_not() -> None:
    state = disk_state()
    state.mark_full("no room")
    full = report(disk=state)
    assert full.ok and "produce is refused, reads go on (no room)" in full.problems[0]
    assert full.problems[0].endswith(f"({FULL_DISK_MEND})")
    state.mark_dead("sync failed")
    dead = report(disk=state)
    assert not dead.ok and "the data directory failed" in dead.problems[0] and "replace the disk" in dead.problems[0]
    assert dead.details["disk_full_since_ms"] == dead.details["disk_dead_since_ms"] == NOW


@pytest.mark.parametrize(
    ("outage", "ok", "words"),
    [
        (Outage(NOW, "timeout"), True, "store unreachable since"),
        (Outage(NOW, "timeout", hit="writes"), True, "store unreachable for writes since"),
        (Outage(NOW, "denied", refused=True), True, "store refuses requests since"),
        (Outage(NOW, "expired", refused=True, login_refused=True), False, "store refuses requests since"),
    ],
)
def test_only_refused_credentials_of_the_store_need_a_restart(outage: Outage, ok: bool, words: str) -> None:
    found = report(outage=outage, pending_metadata=3)
    assert found.ok is ok and found.problems[0].startswith(words)
    assert "all records are in the bucket, 3 changes of metadata wait" in found.problems[0]
    assert "changes of metadata" not in report(outage=outage).problems[0]
    waiting = report(outage=outage, copy_lag_ms=90_000, waiting_segments=2).problems
    assert len(waiting) == 1 and "for 90 s, 2 closed segments wait" in waiting[0], "the outage explains late uploads"


def test_uploads_are_behind_after_their_limit_and_a_grace_time() -> None:
    lag = 10_000 + UPLOAD_GRACE_MS
    assert not report(copy_lag_ms=lag).problems
    [late] = report(copy_lag_ms=lag + 1).problems
    assert late.endswith("tiered.upload.max.lag.ms is 10000")
    [held] = report(copy_lag_ms=lag + 1, holding=LATE).problems
    assert "wait for the end of a transaction of transactional id pay of producer id 7" in held
    assert held.endswith("(tiered transaction abort pay ends it)")


def test_transaction_without_a_known_id_names_the_command_that_finds_it() -> None:
    [named] = report(late_transactions=[LATE]).problems
    assert named.endswith("(tiered transaction abort pay ends it)")
    [unknown] = report(late_transactions=[LATE._replace(transactional_id="")]).problems
    assert unknown.endswith("(tiered explain partition t 0 names the command that ends it)")


def test_lists_of_problems_have_an_end_and_a_count() -> None:
    many = LISTED_MAX + 3
    late = report(late_transactions=[LATE] * many)
    assert len(late.problems) == LISTED_MAX + 1 and late.problems[-1].startswith("and 3 more partitions")
    beyond = report(beyond_ends=[OffsetBeyondEnd("g", TopicPartition("t", 0), 9, 5)] * many)
    assert len(beyond.problems) == LISTED_MAX + 1 and beyond.details["offsets_beyond_end"] == many
    damaged = report(damaged=[DamagedObject(PartitionId(T, 0), "gone", 0)] * many)
    assert len(damaged.problems) == LISTED_MAX + 1 and damaged.problems[0].startswith("cold reads of t-0 fail")
    unserved = report(unserved={f"t-{number}": "full" for number in range(many)})
    assert len(unserved.problems) == LISTED_MAX
    uncleanable = report(uncleanable={TopicPartition("t", number): "rot" for number in range(many)})
    assert len(uncleanable.problems) == LISTED_MAX and uncleanable.details["uncleanable_partitions"] == many


def test_damaged_object_of_a_deleted_topic_is_named_by_its_id() -> None:
    gone = PartitionId(TopicId("Z" * 22), 4)
    [problem] = report(damaged=[DamagedObject(gone, "gone", 0)]).problems
    assert "Z" * 22 in problem


def test_problems_of_others_are_not_its_own() -> None:
    image = cluster(WHOLE, LACKS, ALONE, NOBODY, configs={"min.insync.replicas": "2"})
    image = image.apply([BrokerDiskReported(2, "i2", "full", 0, NOW)], 1)
    found = report(image, clocks=(("own clock",), ("clock of broker 2",)), fenced=["broker 3 is fenced"])
    assert found.own_problems == ["own clock"]
    others = "\n".join(found.problems[1:])
    for words in (
        "clock of broker 2", "broker 3 is fenced", "from broker 2: disk full", "t-3 has no leader",
        "t-2 refuses acks=all", "t-1 has replicas that are not in sync",
    ):  # fmt: skip
        assert words in others
    assert "t-2 has replicas" not in others, "it is named once"
    assert "t-1 has replicas that are not in sync, and writes go on: broker 3 (fenced)" in others
    assert found.details["full_disks"] == [2]


def test_fenced_broker_is_one_sentence_for_all_its_partitions() -> None:
    lacks, alone = made(1, (1, 2, 3), (1, 2)), made(1, (1, 2), (1,))
    image = cluster(*[lacks] * (NAMED_MAX + 2), alone)
    first, second = report(image).problems
    assert first.startswith(
        f"{NAMED_MAX + 2} partitions have replicas that are not in sync, and writes go on: broker 3"
    )
    assert first.endswith(f"(t-0, t-1, t-2, t-3, t-{NAMED_MAX - 1} and 2 more)") and "t-7 has replicas" in second
    [gone] = report(cluster(*[NOBODY] * 2)).problems
    assert gone == "2 partitions have no leader: waits for broker 3 (fenced) (t-0, t-1)"


def test_partitions_of_users_are_named_before_internal_ones() -> None:
    image = cluster()
    for slot, (name, isr) in enumerate([(OFFSETS_TOPIC, (1,)), ("orders", (1, 3))]):
        topic_id = TopicId(f"AAAAAAAAAAAAAAAAAAAA{slot}Q")
        created = TopicCreated(name, topic_id, ((1, 2, 3), (1, 2)), {}, 0)
        told = [PartitionChanged(topic_id, number, 1, 0, isr[: 2 - number], (), ()) for number in range(2)]
        image = image.apply([created, *told], 1 + slot)
    first, second = report(image).problems
    assert first.endswith(f": broker 2 (orders-0, orders-1, {OFFSETS_TOPIC}-1)"), first
    assert second.startswith(f"partition {OFFSETS_TOPIC}-0 has replicas"), second


def test_full_disk_of_this_broker_is_its_own_problem_once_leaders_moved() -> None:
    image = cluster(WHOLE).apply([BrokerDiskReported(1, "i1", "full", 0, NOW)], 1)
    assert not report(image).problems, "the disk itself is named by its state"
    assert [each for each in report(image, node_id=2).problems if "from broker 1" in each]
    image = image.apply([BrokerDiskReported(1, "i1", "full", 2, NOW)], 2)
    [own] = report(image).own_problems
    assert own.startswith("moved leadership of 2 partitions from broker 1: disk full")


def test_full_disk_of_two_processes_is_named_once() -> None:
    image = cluster(WHOLE).apply([BrokerRegistered(1002, "i1002", "", "", "", NOW, process=1)], 1)
    for node, moved in ((2, 3), (1002, 4)):
        image = image.apply([BrokerDiskReported(node, f"i{node}", "full", moved, NOW + node)], node)
    [problem] = report(image, node_id=1).problems
    assert problem.startswith(
        "moved leadership of 7 partitions from brokers 2 and 1002 of one machine: disk full since"
    )
    assert problem.endswith(f"{format_time(NOW + 2)} ({FULL_DISK_MEND})")
    found = report(image, node_id=1002)
    assert (found.own_problems, found.problems) == ([problem], [problem])
    assert found.details["full_disks"] == [2, 1002]


def test_lost_contact_counts_for_a_broker_that_has_started() -> None:
    assert report(contact_lost="no contact").own_problems == ["no contact"]
    assert "no contact" not in report(contact_lost="no contact", started=False).problems


def test_metadata_that_waits_is_named_unless_the_outage_names_it() -> None:
    assert report(metadata_trouble="denied", pending_metadata=2).problems == ["2 changes of metadata wait: denied"]
    assert len(report(metadata_trouble="denied", outage=Outage(NOW, "timeout")).problems) == 1
