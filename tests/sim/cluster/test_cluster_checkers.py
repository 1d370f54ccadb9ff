"""Tests of the checkers of client histories: each reports a history that breaks its rule, and is silent for one that
does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.sim.cluster import checkers
from tests.sim.cluster.checkers import PartitionDump
from tests.sim.cluster.disk_logs import LOG_DIR, read_disk_log
from tests.sim.cluster.history import (
    ClientHistory,
    CommitAttempt,
    EndOffsetReply,
    GroupOffsets,
    Ownership,
    PollResult,
    ReadRecord,
    Send,
    SendVerdict,
    verdict_of,
)
from tests.sim.cluster.moves import OFFSETS, ExpectedReplicas
from tests.sim.cluster.observer import Finding, has_boot_mark, has_torn_metadata, may_be_marked_clean
from tests.sim.cluster.operators import waits_for_lost
from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import batch
from tiered.durability.data_directory import DataDirectory
from tiered.errors import Code
from tiered.hot import checkpoints
from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import PartitionImage

T = TopicPartition("t", 0)
SECOND = 1_000_000_000


def never(tp: TopicPartition, offset: int, since_ns: int) -> bool:
    return False


def always(tp: TopicPartition, offset: int, since_ns: int) -> bool:
    return True


def is_promised(send: Send) -> bool:
    return send.acks == -1


def make_send(
    value: bytes, offset: int, *, sender: str = "s", number: int = 0, verdict: SendVerdict = SendVerdict.OK
) -> Send:
    return Send(sender, number, T, (value,), -1, 0, done_ns=1, verdict=verdict, base_offset=offset)


def make_poll(*rows: tuple[int, bytes], position: int = 0, is_repositioned: bool = True, at_ns: int = 0) -> PollResult:
    return PollResult("r", T, at_ns, position, is_repositioned, tuple(ReadRecord(*row) for row in rows), 0, 1000)


def make_dump(*values: bytes, start: int = 0) -> dict[TopicPartition, PartitionDump]:
    numbered = {start + number: value for number, value in enumerate(values)}
    return {T: PartitionDump(start, start + len(values), numbered)}


def rules(findings: Iterator[Finding]) -> list[str]:
    return [finding.rule for finding in findings]


def test_i1_i2_acknowledged_record_is_at_its_offset() -> None:
    history = ClientHistory([make_send(b"a", 0), make_send(b"b", 1)])
    assert rules(checkers.check_acked_records(history, make_dump(b"a", b"b"), is_promised, never)) == []
    assert rules(checkers.check_acked_records(history, make_dump(b"a", b"x"), is_promised, never)) == ["I1"]
    assert rules(checkers.check_acked_records(history, make_dump(b"b", b"a"), is_promised, never)) == ["I2", "I2"]
    assert rules(checkers.check_acked_records(history, make_dump(b"a", b"x"), is_promised, always)) == []
    assert rules(checkers.check_acked_records(history, make_dump(b"c", start=2), is_promised, never)) == [], (
        "it has expired"
    )


def test_i1_only_promised_records_count() -> None:
    send = replace(make_send(b"a", 0), acks=1)
    assert rules(checkers.check_acked_records(ClientHistory([send]), make_dump(b"x"), is_promised, never)) == []


def test_loss_is_reported_from_its_first_record_on() -> None:
    history = ClientHistory([make_send(b"a", 0), make_send(b"b", 1)])
    for check_commit, expected in (([1], []), ([0], []), ([2], ["R4"]), ([], ["R4"])):
        assert (
            rules(checkers.check_losses_reported(history, make_dump(b"a", b"x"), is_promised, {T: check_commit}))
            == expected
        )


def test_i3_log_with_a_hole_is_reported() -> None:
    assert rules(checkers.check_dense_offsets(make_dump(b"a", b"b"))) == []
    assert rules(checkers.check_dense_offsets({T: PartitionDump(0, 3, {0: b"a", 2: b"c"})})) == ["I3"]


def test_i3_reader_that_skips_or_repeats_records_is_reported() -> None:
    first = make_poll((0, b"a"), (1, b"b"))
    for rows, expected in (((2,), []), ((3,), ["I3"]), ((1,), ["I3"]), ((2, 4), ["I3"])):
        then = make_poll(*((offset, b"x") for offset in rows), position=2, is_repositioned=False)
        assert rules(checkers.check_contiguous_reads(ClientHistory(polls=[first, then]))) == expected
    trimmed = make_poll((5, b"f"), position=2, is_repositioned=False)._replace(log_start=5)
    assert rules(checkers.check_contiguous_reads(ClientHistory(polls=[trimmed]))) == []


def test_i4_offset_with_two_values_is_reported() -> None:
    history = ClientHistory(polls=[make_poll((0, b"a")), make_poll((0, b"b"))])
    assert rules(checkers.check_one_value_per_offset(history, {}, never)) == ["I4"]
    assert rules(checkers.check_one_value_per_offset(history, {}, always)) == []
    history = ClientHistory(polls=[make_poll((0, b"a"))])
    assert rules(checkers.check_one_value_per_offset(history, make_dump(b"a"), never)) == []
    assert rules(checkers.check_one_value_per_offset(history, make_dump(b"b"), never)) == ["I4"]
    assert rules(checkers.check_one_value_per_offset(history, make_dump(b"b", start=1), never)) == []


def test_i6_record_above_the_high_watermark_is_reported() -> None:
    poll = make_poll((0, b"a"), (1, b"b"))
    assert rules(checkers.check_reads_committed(ClientHistory(polls=[poll._replace(high_watermark=2)]))) == []
    assert rules(checkers.check_reads_committed(ClientHistory(polls=[poll._replace(high_watermark=1)]))) == ["I6"]


@pytest.mark.parametrize(
    ("seen", "end", "red"),
    [
        (5, EndOffsetReply("r", T, 2, 3, 5, True), []),
        (5, EndOffsetReply("r", T, 2, 3, 4, True), ["I6"]),
        (5, EndOffsetReply("r", T, 0, 3, 4, True), []),
        (5, EndOffsetReply("r", T, 2, 3, 4, False), []),
        (5, EndOffsetReply("another", T, 2, 3, 4, True), []),
        (5, EndOffsetReply("r", TopicPartition("t", 1), 2, 3, 4, True), []),
    ],
)
def test_i6_reported_end_does_not_go_back(seen: int, end: EndOffsetReply, red: list[str]) -> None:
    """A reported end is not below an offset that its reader saw before the request, in a fetch or in an earlier
    report."""
    poll = make_poll((0, b"a"), at_ns=1)._replace(high_watermark=seen)
    assert rules(checkers.check_end_offsets(ClientHistory(polls=[poll], end_offsets=[end]), never)) == red
    assert rules(checkers.check_end_offsets(ClientHistory(polls=[poll], end_offsets=[end]), always)) == []
    before = EndOffsetReply("r", T, 0, 1, seen, False)
    assert rules(checkers.check_end_offsets(ClientHistory(end_offsets=[before, end]), never)) == red


def test_i11_repeated_value_or_sequence_gap_is_reported() -> None:
    assert rules(checkers.check_no_duplicates(make_dump(b"a", b"b"), never)) == []
    assert rules(checkers.check_no_duplicates(make_dump(b"a", b"a"), never)) == ["I11"]
    batches = [(0, 7, 0, 2), (2, -1, -1, 1), (3, 7, 2, 1)]
    assert rules(checkers.check_no_duplicates({T: PartitionDump(0, 0, {}, batches)}, never)) == []
    batches = [(0, 7, 0, 2), (2, 7, 3, 1)]
    assert rules(checkers.check_no_duplicates({T: PartitionDump(0, 0, {}, batches)}, never)) == ["I11"]
    assert rules(checkers.check_no_duplicates({T: PartitionDump(0, 0, {}, batches)}, always)) == [], (
        "what came between was lost"
    )


def test_i12_records_of_a_sender_out_of_order_are_reported() -> None:
    sends = [make_send(b"a", 0), make_send(b"b", 1)]
    assert rules(checkers.check_order(ClientHistory(sends), make_dump(b"a", b"b"))) == []
    assert rules(checkers.check_order(ClientHistory(sends), make_dump(b"b", b"a"))) == ["I12"]
    unsure = [make_send(b"a", 0, verdict=SendVerdict.UNKNOWN), make_send(b"b", 1)]
    assert rules(checkers.check_order(ClientHistory(unsure), make_dump(b"b", b"a"))) == [], (
        "the first may have come late"
    )
    identity = [replace(each, producer_id=7) for each in unsure]
    assert rules(checkers.check_order(ClientHistory(identity), make_dump(b"b", b"a"))) == ["I12"], (
        "not under one identity"
    )
    together = [replace(identity[0], done_ns=9), replace(identity[1], invoked_ns=1, done_ns=8)]
    assert rules(checkers.check_order(ClientHistory(together), make_dump(b"b", b"a"))) == ["I12"]
    assert rules(checkers.check_order(ClientHistory(together), make_dump(b"b", b"a"), [9])) == ["I12"], (
        "it was forgotten later"
    )
    assert rules(checkers.check_order(ClientHistory(together), make_dump(b"b", b"a"), [0])) == []
    after = [together[0], replace(identity[1], invoked_ns=9, done_ns=12)]
    assert rules(checkers.check_order(ClientHistory(after), make_dump(b"b", b"a"), [0])) == ["I12"], (
        "one after the other"
    )


def test_i13_record_that_was_never_sent_or_was_refused_is_reported() -> None:
    assert rules(checkers.check_no_phantoms(ClientHistory([make_send(b"a", 0)]), make_dump(b"a"))) == []
    assert rules(checkers.check_no_phantoms(ClientHistory(), make_dump(b"a"))) == ["I13"]
    refused = make_send(b"a", 0, verdict=SendVerdict.FAILED)
    assert rules(checkers.check_no_phantoms(ClientHistory([refused], [make_poll((0, b"a"))]), {})) == ["I13"]
    elsewhere = replace(make_send(b"a", 0), tp=TopicPartition("u", 0))
    assert rules(checkers.check_no_phantoms(ClientHistory([elsewhere]), make_dump(b"a"))) == ["I13"]


def test_i17_partition_with_two_owners_is_reported() -> None:
    def owner(member: str, generation: int, since: int, until: int) -> Ownership:
        return Ownership("g", member, generation, (T,), since, until)

    assert rules(checkers.check_single_owner([owner("a", 1, 0, 5), owner("b", 2, 5, 9)])) == []
    assert rules(checkers.check_single_owner([owner("a", 1, 0, 5), owner("b", 2, 4, 9)])) == ["I17"]
    assert rules(checkers.check_single_owner([owner("a", 1, 0, 5), owner("b", 1, 7, 9)])) == ["I17"]
    assert rules(checkers.check_single_owner([owner("a", 1, 0, 5), owner("a", 2, 4, 9)])) == []
    late = owner("b", 2, 4, 3)
    assert rules(checkers.check_single_owner([owner("a", 3, 0, 5), late])) == [], (
        "its session was over before the reply"
    )
    assert rules(checkers.check_single_owner([owner("a", 1, 0, 5), owner("b", 1, 4, 9)], [3])) == [], "it was forgotten"
    later = [owner("a", 1, 4, 5), owner("b", 1, 6, 9)]
    assert rules(checkers.check_single_owner(later, [3])) == ["I17"]
    assert rules(checkers.check_single_owner([owner("a", 1, 0, 3), *later], [3])) == [], "its generation is from before"


def test_i18_commit_of_an_epoch_that_its_member_left_is_reported() -> None:
    def late(code: Code | None, *lost_at: int) -> list[str]:
        return rules(checkers.check_late_commits([CommitAttempt("g", T, 0, 4, 6, code, 1)], lost_at))

    assert late(Code.NONE) == late(Code.NONE, 7) == ["I18"]
    assert late(Code.STALE_MEMBER_EPOCH) == late(None) == []
    assert late(Code.NONE, 5) == [], "the coordinator counts from the beginning"


def test_i18_committed_offset_is_that_of_the_last_commit() -> None:
    def commit(offset: int, at: int, code: Code | None = Code.NONE) -> CommitAttempt:
        return CommitAttempt("g", T, offset, at, at + 1, code)

    def reply(found: int, asked: int, answered: int = 99) -> list[str]:
        offsets = {T: found} if found >= 0 else {}
        return rules(checkers.check_committed_offsets(commits, [GroupOffsets("g", offsets, asked, answered)]))

    commits = [commit(5, 0), commit(8, 10), commit(9, 20, None)]
    for found, expected in ((8, []), (9, []), (5, ["I18"]), (7, ["I18"]), (-1, ["I18"])):
        assert reply(found, asked=50) == expected
    assert reply(5, asked=5, answered=12) == reply(8, asked=5, answered=12) == []
    assert reply(9, asked=5, answered=12) == reply(5, asked=15) == ["I18"], (
        "not asked for yet; another was acknowledged"
    )
    assert reply(-1, asked=0, answered=2) == [] and reply(-1, asked=1, answered=2) == ["I18"]
    commits = [commit(5, 0, None), commit(6, 2, Code.REBALANCE_IN_PROGRESS), commit(8, 10)]
    assert reply(5, asked=50) == [] and reply(6, asked=50) == ["I18"], "it may arrive late"
    commits = [commit(5, 0, None)._replace(generation=2), commit(8, 10)._replace(generation=3)]
    assert reply(5, asked=50) == ["I18"], "its generation is over"
    commits = []
    assert reply(-1, asked=0) == []


def test_i18_returned_offset_stays_until_the_next_commit() -> None:
    def commit(offset: int, at: int, code: Code | None = Code.NONE) -> CommitAttempt:
        return CommitAttempt("g", T, offset, at, at + 1, code)

    def reply(before: int, after: int, *, sure: bool = True, lost_at: int = -1) -> list[str]:
        offsets = {T: after} if after >= 0 else {}
        shown = [(GroupOffsets("g", {T: before}, 30, 31), False), (GroupOffsets("g", offsets, 50, 51), sure)]
        return rules(checkers.check_offsets_stable(commits, shown, [lost_at] if lost_at >= 0 else []))

    commits = [commit(5, 0), commit(8, 10), commit(6, 40, Code.ILLEGAL_GENERATION)]
    assert reply(8, 8) == reply(5, 8) == [], "the later of both"
    assert reply(8, 5) == reply(8, -1) == reply(8, 6) == ["I18"]
    assert reply(8, 5, sure=False) == reply(8, 5, lost_at=20) == []
    assert reply(8, 5, lost_at=60) == ["I18"]
    commits = [commit(5, 0, None), commit(8, 10), commit(7, 40)]
    assert reply(8, 5) == reply(8, 7) == [], "it may have come late; it was asked for since"
    end = 20 * SECOND
    commits = [commit(5, 0), commit(8, end)]
    shown = [(GroupOffsets("g", {T: 8}, end + 2, end + 3), False), (GroupOffsets("g", {T: 5}, end + 4, end + 5), True)]
    assert rules(checkers.check_offsets_stable(commits, shown, [11 * SECOND])) == [], "the leader did not know it yet"
    assert rules(checkers.check_offsets_stable(commits, shown, [9 * SECOND])) == ["I18"]
    commits = [commit(5, 0), commit(8, 10), commit(5, 52)]
    assert reply(8, 5) == ["I18"], "it was asked for later than it was shown"
    commits = [commit(9, 40), commit(8, 60)]
    assert reply(8, 9) == [], "8 was not shown because of the commit that followed"
    for waited in (Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE):
        commits = [commit(5, 10, waited), commit(8, 40), commit(5, 60)]
        assert reply(5, 8) == reply(8, 5) == [], "a commit that waited for replicas may be in the log"
        commits = [commit(5, 52, waited)]
        assert reply(8, 5) == ["I18"], "it was asked for later than it was shown"
    commits = [commit(5, 10, Code.UNKNOWN_MEMBER_ID)]
    assert reply(8, 5) == ["I18"]


def test_i18_coordinator_may_cut_offsets_back_after_a_loss() -> None:
    commits = [CommitAttempt("g", T, 8, 10, 11, Code.NONE)]

    def reply(after: int, gone_from: int) -> list[str]:
        shown = [(GroupOffsets("g", {T: 8}, 30, 31), False), (GroupOffsets("g", {T: after}, 50, 51), True)]
        return rules(
            checkers.check_offsets_stable(
                commits, shown, (), lambda _, offset, since: offset >= gone_from and since == 0
            )
        )

    assert reply(5, gone_from=5) == [], "the log ends at 5"
    assert reply(5, gone_from=6) == ["I18"], "all that is before 6 is there"
    assert reply(9, gone_from=0) == ["I18"], "forward is no cut"


def test_i18_offset_may_be_the_end_of_a_partition_that_lost_records() -> None:
    def reply(found: int, *, gone_from: int, answered: int = 51) -> list[str]:
        offsets = {T: found} if found >= 0 else {}
        places = [GroupOffsets("g", offsets, answered - 1, answered)]
        return rules(checkers.check_committed_offsets(commits, places, lambda _, offset, since: offset >= gone_from))

    commits = [CommitAttempt("g", T, 8, 10, 11, Code.NONE)]
    assert reply(5, gone_from=5) == [], "the log ends at 5"
    assert reply(5, gone_from=6) == ["I18"], "all that is before 6 is there"
    assert reply(9, gone_from=0) == ["I18"], "forward is no cut"
    assert reply(-1, gone_from=0) == ["I18"], "a cut takes no offset away"
    assert reply(5, gone_from=5, answered=9) == ["I18"], "nobody had asked for anything by then"


def test_i17_generation_that_goes_back_is_reported() -> None:
    def owns(member: str, generation: int, asked: int, since: int) -> Ownership:
        return Ownership("g", member, generation, (T,), since, since + 9, asked)

    first, again = owns("a", 3, 0, 5), owns("b", 2, 6, 9)
    assert rules(checkers.check_generations_grow([first, owns("b", 4, 6, 9)])) == []
    assert rules(checkers.check_generations_grow([first, owns("b", 2, 4, 9)])) == [], "its answer was long on its way"
    assert rules(checkers.check_generations_grow([first, again])) == ["I17"]
    assert rules(checkers.check_generations_grow([first, again], [7])) == []


def test_i18_commit_of_an_old_generation_is_reported() -> None:
    owned = [Ownership("g", "a", 1, (T,), 0, 9), Ownership("g", "b", 2, (T,), 5, 9)]

    def check_commit(generation: int, at: int, code: Code | None = Code.NONE) -> list[str]:
        return rules(checkers.check_commit_generations([CommitAttempt("g", T, 7, at, at + 1, code, generation)], owned))

    assert check_commit(1, 4) == [] and check_commit(2, 6) == [] and check_commit(1, 6, Code.ILLEGAL_GENERATION) == []
    assert check_commit(1, 6) == ["I18"]


@pytest.mark.parametrize(
    ("code", "acks", "attempts", "verdict"),
    [
        (Code.NONE, -1, 3, SendVerdict.OK),
        (Code.NOT_ENOUGH_REPLICAS, -1, 1, SendVerdict.FAILED),
        (Code.NOT_ENOUGH_REPLICAS, -1, 2, SendVerdict.UNKNOWN),
        (Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1, 1, SendVerdict.UNKNOWN),
        (Code.NOT_LEADER_OR_FOLLOWER, 1, 1, SendVerdict.FAILED),
        (Code.NOT_LEADER_OR_FOLLOWER, -1, 1, SendVerdict.UNKNOWN),
        (Code.REQUEST_TIMED_OUT, -1, 1, SendVerdict.UNKNOWN),
        (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 1, SendVerdict.FAILED),
        (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 2, SendVerdict.UNKNOWN),
        (Code.KAFKA_STORAGE_ERROR, 1, 1, SendVerdict.UNKNOWN),
    ],
)
def test_error_code_gives_the_verdict_of_a_send(code: Code, acks: int, attempts: int, verdict: SendVerdict) -> None:
    assert verdict_of(code, acks=acks, attempts=attempts) is verdict


def test_replicas_end_up_as_the_last_granted_reassignment_says() -> None:
    ends, here = ExpectedReplicas(), {T: (1, 2)}
    ends.on_reply(T, (2, 3), Code.INVALID_REPLICA_ASSIGNMENT)
    assert list(ends.find_misplaced(here.__getitem__)) == []
    ends.on_reply(T, (2, 3), Code.NONE)
    assert list(ends.find_misplaced(here.__getitem__)) == ["t-0 was to be on [(2, 3)], is on (1, 2)"]
    ends.on_reply(T, (1, 3), Code.NONE)
    assert len(list(ends.find_misplaced(here.__getitem__))) == 1
    ends.on_reply(T, None, Code.NONE)
    assert list(ends.find_misplaced(here.__getitem__)) == []


def test_reassignment_without_reply_may_come_after_a_later_granted_one() -> None:
    ends, here = ExpectedReplicas(), {T: (1, 2)}
    ends.on_reply(T, (1, 2), None)
    ends.on_reply(T, (1, 3), Code.NONE)
    assert list(ends.find_misplaced(here.__getitem__)) == []
    here[T] = (2, 3)
    assert list(ends.find_misplaced(here.__getitem__)) == ["t-0 was to be on [(1, 2), (1, 3)], is on (2, 3)"]
    ends.on_reply(T, None, None)
    assert list(ends.find_misplaced(here.__getitem__)) == []


def test_moved_offsets_partition_gains_its_missing_replica() -> None:
    """The new replica comes after the existing ones. Only partitions of committed offsets gain one."""
    for tp, gains in ((T, False), (OFFSETS, True)):
        ends = ExpectedReplicas()
        ends.on_reply(tp, (3, 1), Code.NONE)
        assert (not list(ends.find_misplaced({tp: (3, 1, 2)}.__getitem__))) is gains
        assert list(ends.find_misplaced({tp: (1, 3, 2)}.__getitem__))


def test_boot_mark_stays_until_a_power_cut() -> None:
    """A process may die in any way: its writes are in the page cache."""
    disk = SimDisk(random.Random(0))

    async def trust(marked: SimDisk) -> None:
        directory = DataDirectory(marked)
        await directory.open("cluster", 1, "directory")
        assert not has_boot_mark(marked)
        await directory.write_boot_mark("one")

    asyncio.run(trust(disk))
    assert has_boot_mark(disk)
    assert has_boot_mark(disk.after_kill())
    assert not has_boot_mark(disk.after_power_cut())


@pytest.mark.parametrize(("first", "found"), [([0, 1], [0, 1, 2]), ([0], [0]), ([], [])])
def test_disk_log_ends_where_a_power_cut_emptied_a_segment(first: list[int], found: list[int]) -> None:
    disk = SimDisk(random.Random(1))
    disk.make_dirs(f"{LOG_DIR}/t-0")
    for base, offsets in ((0, first), (2, [2])):
        disk.open(f"{LOG_DIR}/t-0/{base:020d}.log", create=True).append(
            [offset.to_bytes(8, "big") + batch(offset)[8:] for offset in offsets]
        )
    start, batches = read_disk_log(disk, "t-0")
    assert (start, [each.base for each in batches]) == (0, found)


def test_r1_clean_mark_may_come_back_until_its_removal_is_durable() -> None:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("log")
    asyncio.run(DataDirectory(disk).mark_clean([], "one"))
    assert may_be_marked_clean(disk)
    disk.remove("log/.kafka_cleanshutdown")
    assert may_be_marked_clean(disk)
    asyncio.run(disk.sync_dir("log"))
    assert not may_be_marked_clean(disk)


def test_log_whose_topic_id_a_power_cut_tore_is_no_log_of_the_next_start() -> None:
    disk = SimDisk(random.Random(1))
    assert not has_torn_metadata(disk, "t-0"), "no log is there"
    disk.make_dirs("log/t-0")
    assert has_torn_metadata(disk, "t-0"), "the cut took it"
    whole = checkpoints.encode_metadata("x" * 22)
    for written, torn in ((b"", True), (whole[:9], True), (whole[:9] + bytes(40), True), (whole, False)):
        disk.remove("log/t-0/partition.metadata")
        disk.open("log/t-0/partition.metadata", create=True).append([written])
        assert has_torn_metadata(disk, "t-0") is torn


def test_replicas_that_move_within_a_machine_are_in_their_places() -> None:
    ends, tp = ExpectedReplicas(), TopicPartition("t", 0)
    ends.on_reply(tp, (1, 1002), Code.NONE)
    here = {tp: (1001, 2)}
    assert list(ends.find_misplaced(here.__getitem__, lambda node: node % 1000)) == []
    assert len(list(ends.find_misplaced(here.__getitem__))) == 1
    here[tp] = (1001, 3)
    assert len(list(ends.find_misplaced(here.__getitem__, lambda node: node % 1000))) == 1


@pytest.mark.parametrize(
    ("adding", "isr", "is_waiting"),
    [((2,), (1,), True), ((2, 3), (1, 3), True), ((2, 3), (1,), False), ((3,), (1, 3), False), ((), (1,), False)],
)
def test_move_cannot_end_if_it_lacks_lost_brokers_alone(
    adding: tuple[int, ...], isr: tuple[int, ...], is_waiting: bool
) -> None:
    """Broker 2 is lost for good. A move ends once all replicas that it adds are in sync."""
    partition = PartitionImage((1, *adding), 1, 0, isr, (), None, adding=adding)
    assert waits_for_lost(partition, {2}) is is_waiting
