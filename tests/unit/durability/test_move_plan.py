"""Tests of the plan by which logs move between the processes of a machine, and of its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiered.durability.move_plan import (
    Giver,
    Journal,
    Move,
    ProcessDirectory,
    count_processes_with_logs,
    encode_journal,
    find_obstacle,
    parse_journal,
    plan_moves,
)
from tiered.errors import Corrupt
from tiered.ids import TopicId, TopicPartition
from tiered.object_store.envelope import seal

ID = TopicId("KsXw4YCkQ2eAy3Yb0rDb3A")


def logs(topic: str, *partitions: int) -> tuple[tuple[TopicPartition, TopicId], ...]:
    return tuple((TopicPartition(topic, p), ID) for p in partitions)


def used(process: int, *found: tuple[TopicPartition, TopicId], device: int = 1) -> ProcessDirectory:
    node = str(1 + 1000 * process)
    return ProcessDirectory(process, device, node, "c", f"d{process}", f"i{process}", found, metadata_version=2)


def after(directories: Sequence[ProcessDirectory], moves: Sequence[Move]) -> dict[int, set[TopicPartition]]:
    """Returns the logs of each process after the moves."""
    found = {each.process: {tp for tp, _ in each.logs} for each in directories}
    for each in moves:
        found[each.giver].remove(each.tp)
        assert each.tp not in found[each.receiver]
        found[each.receiver].add(each.tp)
    return found


def test_new_processes_take_a_fair_share_of_each_topic() -> None:
    directories = [used(0, *logs("a", *range(100)), *logs("b", *range(100)))]
    directories += [ProcessDirectory(process, 1) for process in (1, 2, 3)]
    found = after(directories, plan_moves(directories, 4))
    assert [len(found[process]) for process in range(4)] == [50, 50, 50, 50]
    for process in range(4):
        topics = Counter(tp.topic for tp in found[process])
        assert max(topics.values()) - min(topics.values()) <= 2


def test_processes_that_are_left_out_give_all_to_the_emptiest() -> None:
    directories = [used(0, *logs("a", 0, 1, 2)), used(1), used(2, *logs("a", 3, 4)), used(3, *logs("a", 5, 6, 7))]
    found = after(directories, plan_moves(directories, 2))
    assert [len(found[process]) for process in range(4)] == [4, 4, 0, 0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_start_with_the_same_processes_moves_nothing(count: int) -> None:
    directories = [used(0, *logs("a", *range(30))), used(1, *logs("a", 40)), used(2)]
    assert plan_moves(directories[:count], count) == ()


def test_process_without_a_log_that_ran_before_takes_nothing() -> None:
    """An operator has moved its replicas away."""
    assert plan_moves([used(0, *logs("a", *range(9))), used(1)], 2) == ()


def test_logs_move_on_their_own_file_system_alone() -> None:
    directories = [used(0, *logs("a", 0), device=1), used(1, device=2), used(2, *logs("a", 1, 2), device=2)]
    moves = plan_moves(directories, 2)
    assert {each.receiver for each in moves} == {1} and not find_obstacle(directories, moves, 2)
    moves = plan_moves(directories, 1)
    assert moves == () and "process-2 is on another file system" in find_obstacle(directories, moves, 1)
    new = [used(0, *logs("a", *range(9))), ProcessDirectory(1, 2)]
    assert plan_moves(new, 2) == () and not find_obstacle(new, (), 2)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_any_plan_keeps_each_log_once_and_balances_new_processes(counts: list[int], count: int) -> None:
    numbers = iter(range(10_000))
    directories = [used(process, *logs("t", *(next(numbers) for _ in range(n)))) for process, n in enumerate(counts)]
    directories += [ProcessDirectory(process, 1) for process in range(len(counts), count)]
    moves = plan_moves(directories, count)
    found = after(directories, moves)
    assert sorted(tp.partition for tps in found.values() for tp in tps) == list(range(sum(counts)))
    assert not any(tps for process, tps in found.items() if process >= count)
    assert all(len(found[process]) >= sum(counts) // count for process in range(len(counts), count))
    assert len({each.tp for each in moves}) == len(moves) and not find_obstacle(directories, moves, count)
    assert count_processes_with_logs(directories) <= len(counts)
    if count == len(counts):
        assert not moves


OBSTACLES = {
    "did not stop cleanly": used(2, *logs("a", 1))._replace(incarnation=""),
    "is not known": used(2, *logs("a", 1))._replace(directory_id=""),
    "has no topic id": used(2, *logs("a", 1))._replace(unnamed=("a-7",)),
    "is not registered yet": used(2, *logs("a", 1))._replace(has_adopted=True),
    "has a log twice": used(2, *logs("a", 0)),
    "has not seen the level": used(2, *logs("a", 1))._replace(metadata_version=1),
    "is of another cluster": used(2, *logs("a", 1))._replace(cluster_id="e"),
}
WHY = {
    "did not stop cleanly": "process-2 did not stop cleanly",
    "is not known": "process-2 did not stop cleanly",
    "has no topic id": "the topic id of a-7 in process-2 cannot be read",
    "is not registered yet": "process-2 has logs that the cluster does not know there yet",
    "has a log twice": "process-2 and process-0 both have a log of a-0",
    "has not seen the level": "process-2 has not seen tiered.metadata.version=2 when it ran last",
    "is of another cluster": "its processes are of several clusters",
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_moves_that_are_not_proved_are_not_made(case: str) -> None:
    directories = [used(0, *logs("a", 0)), OBSTACLES[case]]
    assert find_obstacle(directories, plan_moves(directories, 1), 1) == WHY[case]
    assert count_processes_with_logs(directories) == 3


def test_marked_process_takes_its_share_at_a_later_start() -> None:
    directories = [used(0, *logs("a", *range(8))), used(1, *logs("a", 8, 9))._replace(is_marked=True)]
    found = after(directories, plan_moves(directories, 2))
    assert [len(found[process]) for process in (0, 1)] == [5, 5]


def test_receiver_that_did_not_stop_cleanly_gets_nothing() -> None:
    directories = [used(0)._replace(incarnation=""), used(1, *logs("a", 0))]
    assert find_obstacle(directories, plan_moves(directories, 1), 1) == "process-0 did not stop cleanly"


JOURNAL = Journal(
    (Giver(0, 7, "d", "i", False), Giver(4, 4007, "e", "j", True)),
    (Move(TopicPartition("a.b", 3), ID, 0, 2), Move(TopicPartition("c", 0), ID, 4, 1)),
)


def test_journal_comes_back_as_it_was() -> None:
    assert parse_journal(encode_journal(JOURNAL), "x") == JOURNAL and JOURNAL.processes == 3


def test_each_damaged_or_cut_journal_is_found() -> None:
    whole = encode_journal(JOURNAL)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        for data in (bytes(damaged), whole[:at]):
            with pytest.raises(Corrupt):
                parse_journal(data, "x")


@pytest.mark.parametrize("body", [{"version": 2}, {}, {"version": 1, "givers": [[1]], "moves": []}])
def test_journal_of_another_form_is_not_guessed(body: dict[str, object]) -> None:
    with pytest.raises(Corrupt, match="were about to move between processes"):
        parse_journal(seal(body), "x")
