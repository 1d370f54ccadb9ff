"""Tests of requests about very many resources: they leave turns of the event loop to other clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.e2e.group_calls import NOBODY, QUICK, fetch_committed, join
from tests.e2e.kafka_site import KafkaBroker, run
from tests.scenario import run_by
from tests.seeds import chosen
from tiered.errors import Code
from tiered.system import turns
from tiered_api.kafka.protocol.messages import (
    create_partitions,
    delete_records,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    find_coordinator,
    join_group,
    leave_group,
    list_offsets,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
)
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.connection import SCRATCH_FRAME_MAX
from tiered_api.kafka.server.dispatch import LARGE_FRAME_BYTES
from tiered_api.kafka.server.handlers import describe_topic_partitions as pages_handler
from tiered_api.kafka.server.handlers import join_group as join_group_handler
from tiered_api.kafka.server.handlers import offset_fetch as offset_fetch_handler
from tiered_api.kafka.server.requests import group_requests

COUNT = 20_000
PIECE_SECONDS = 1e-4
"""A piece of this time has a tenth of the calls on a fast machine, and fewer on a slow one."""
CALLS_PER_TURN = 25_000
"""Most calls of functions in one turn: some milliseconds of work. A request has at least twice as many."""
NUMBERS = range(COUNT)
CONNECTIONS, NAMES_OF_EACH = 60, 1_000

REQUESTS: dict[str, Callable[[], tuple[Message, int]]] = {
    "users": lambda: (
        describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            [describe_user_scram_credentials.UserName(f"u{n}") for n in NUMBERS]
        ),
        0,
    ),
    "members": lambda: (
        leave_group.LeaveGroupRequest("g", members=[leave_group.MemberIdentity(f"m{n}") for n in NUMBERS]),
        4,
    ),
    "offsets": lambda: (
        list_offsets.ListOffsetsRequest(
            -1, 0, [list_offsets.ListOffsetsTopic("t", [list_offsets.ListOffsetsPartition(n, -1, -1) for n in NUMBERS])]
        ),
        6,
    ),
    "epochs": lambda: (
        offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            -1,
            [
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    f"t{n}", [offset_for_leader_epoch.OffsetForLeaderPartition(0, -1, 0)]
                )
                for n in NUMBERS
            ],
        ),
        4,
    ),
    "deleted offsets": lambda: (
        offset_delete.OffsetDeleteRequest(
            "g",
            [
                offset_delete.OffsetDeleteRequestTopic(
                    "t", [offset_delete.OffsetDeleteRequestPartition(n) for n in NUMBERS]
                )
            ],
        ),
        0,
    ),
    "fetched offsets": lambda: (
        offset_fetch.OffsetFetchRequest(
            groups=[
                offset_fetch.OffsetFetchRequestGroup(
                    "g", topics=[offset_fetch.OffsetFetchRequestTopics("t", partition_indexes=list(NUMBERS))]
                )
            ]
        ),
        9,
    ),
    "fetched offsets of an old client": lambda: (
        offset_fetch.OffsetFetchRequest("g", [offset_fetch.OffsetFetchRequestTopic(f"t{n}", [0]) for n in NUMBERS]),
        5,
    ),
    "committed offsets": lambda: (
        offset_commit.OffsetCommitRequest(
            "g",
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    f"t{n}", partitions=[offset_commit.OffsetCommitRequestPartition(0, 7)]
                )
                for n in NUMBERS
            ],
        ),
        9,
    ),
    "deleted records": lambda: (
        delete_records.DeleteRecordsRequest(
            [
                delete_records.DeleteRecordsTopic(f"t{n}", [delete_records.DeleteRecordsPartition(0, -1)])
                for n in NUMBERS
            ],
            60_000,
        ),
        2,
    ),
    "more partitions": lambda: (
        create_partitions.CreatePartitionsRequest(
            [create_partitions.CreatePartitionsTopic(f"t{n}", 3, None) for n in NUMBERS], 60_000, True
        ),
        3,
    ),
    "elections": lambda: (
        elect_leaders.ElectLeadersRequest(0, [elect_leaders.TopicPartitions("t", list(NUMBERS))], 60_000),
        2,
    ),
    "pages of topics": lambda: (
        describe_topic_partitions.DescribeTopicPartitionsRequest(
            [describe_topic_partitions.TopicRequest(f"t{n}") for n in NUMBERS]
        ),
        0,
    ),
    "producers": lambda: (
        describe_producers.DescribeProducersRequest([describe_producers.TopicRequest(f"t{n}", [0]) for n in NUMBERS]),
        0,
    ),
}


async def count_calls_per_turn(handled: asyncio.Event) -> int:
    """Returns the most calls of functions in one turn of the event loop until the request is handled."""
    most = calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        while not handled.is_set():
            calls = 0
            await asyncio.sleep(0)
            most = max(most, calls)
    finally:
        sys.setprofile(None)
    return most


async def find_group(site: KafkaBroker) -> None:
    """Returns once the coordinator of groups is there."""
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"])
    client, found = await site.client(), find_coordinator.FindCoordinatorResponse()
    while not found.coordinators or found.coordinators[0].error_code:
        found = await client.ask(request, 4, find_coordinator.FindCoordinatorResponse)


@pytest.mark.parametrize("case", chosen(REQUESTS, REQUESTS.keys() - {"fetched offsets of an old client"}))
def test_request_about_many_resources_takes_turns_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(turns, "PIECE_SECONDS", PIECE_SECONDS)

    async def scenario(site: KafkaBroker) -> None:
        await find_group(site)
        client, handled = await site.client(), asyncio.Event()
        message, version = REQUESTS[case]()
        frame = client.frame(message, version)

        async def handle() -> None:
            await client.send(frame)
            await client.read_reply()
            handled.set()

        handling = asyncio.create_task(handle())
        assert await count_calls_per_turn(handled) < CALLS_PER_TURN
        await handling

    run(tmp_path, scenario, **QUICK)


def test_pages_have_each_of_many_named_topics_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_handler, "LIMIT", 3)

    async def scenario(site: KafkaBroker) -> None:
        client, names = await site.client(), [f"t{n}" for n in range(10)]
        await site.create("t4", 7)
        request = describe_topic_partitions.DescribeTopicPartitionsRequest(
            [describe_topic_partitions.TopicRequest(name) for name in reversed(names)]
        )
        found: list[tuple[str | None, int]] = []
        while True:
            got = await client.ask(request, 0, describe_topic_partitions.DescribeTopicPartitionsResponse)
            for topic in got.topics:
                found += [(topic.name, each.partition_index) for each in topic.partitions] or [(topic.name, -1)]
            if got.next_cursor is None:
                break
            request.cursor = describe_topic_partitions.Cursor(
                got.next_cursor.topic_name, got.next_cursor.partition_index
            )
        known = [("t4", number) for number in range(7)]
        assert found == [*((name, -1) for name in names[:4]), *known, *((name, -1) for name in names[5:])]

    run(tmp_path, scenario)


@run_by(run, "tmp_path", **QUICK)
async def test_member_with_very_many_protocols_is_refused(site: KafkaBroker) -> None:
    await find_group(site)
    protocols = [join_group.JoinGroupRequestProtocol(f"p{n}", b"") for n in range(join_group_handler.PROTOCOLS_MAX)]
    client = await site.client()
    assert (await join(client, "g", protocols=protocols)).error_code == 0
    protocols.append(join_group.JoinGroupRequestProtocol("range", b""))
    assert (await join(client, "h", protocols=protocols)).error_code == Code.INVALID_REQUEST.number


def test_each_of_many_leaving_members_gets_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last of them stand in different decisions."""
    monkeypatch.setattr(group_requests, "DECIDED_ROWS", 10)

    async def scenario(site: KafkaBroker) -> None:
        await find_group(site)
        client = await site.client()
        first = await join(client, "g")
        others = [f"m{n}" for n in range(20)]
        left = [first.member_id, *others, first.member_id]
        request = leave_group.LeaveGroupRequest("g", members=[leave_group.MemberIdentity(each) for each in left])
        got = await client.ask(request, 4, leave_group.LeaveGroupResponse)
        assert [each.member_id for each in got.members] == left
        unknown = Code.UNKNOWN_MEMBER_ID.number
        assert [each.error_code for each in got.members] == [0, *[unknown] * len(others), unknown]
        second = await join(client, "g")
        left = [*others, second.member_id]
        request = leave_group.LeaveGroupRequest("g", members=[leave_group.MemberIdentity(each) for each in left])
        got = await client.ask(request, 4, leave_group.LeaveGroupResponse)
        assert [each.error_code for each in got.members] == [*[unknown] * len(others), 0]

    run(tmp_path, scenario, **QUICK)


def test_offsets_of_many_partitions_are_deleted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_requests, "DECIDED_ROWS", 10)
    count = 21

    async def scenario(site: KafkaBroker) -> None:
        await find_group(site)
        await site.create("t", count)
        client, ends = await site.client(), (0, count - 1)
        rows = [offset_commit.OffsetCommitRequestPartition(n, 7) for n in ends]
        commit = offset_commit.OffsetCommitRequest(
            "g", topics=[offset_commit.OffsetCommitRequestTopic("t", partitions=rows)]
        )
        made = await client.ask(commit, 9, offset_commit.OffsetCommitResponse)
        assert [each.error_code for each in made.topics[0].partitions] == [0, 0]
        numbers = [*range(count), count]
        asked = offset_delete.OffsetDeleteRequestTopic(
            "t", [offset_delete.OffsetDeleteRequestPartition(n) for n in numbers]
        )
        got = await client.ask(offset_delete.OffsetDeleteRequest("g", [asked]), 0, offset_delete.OffsetDeleteResponse)
        assert got.error_code == 0 and [each.partition_index for each in got.topics[0].partitions] == numbers
        codes = [each.error_code for each in got.topics[0].partitions]
        assert codes == [*[0] * count, Code.UNKNOWN_TOPIC_OR_PARTITION.number]
        assert [await fetch_committed(client, "g", partition=n) for n in ends] == [-1, -1]

    run(tmp_path, scenario, **QUICK)


@pytest.mark.parametrize("version", (1, 7, 9, 10))
def test_offsets_of_many_partitions_are_fetched_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(offset_fetch_handler, "FETCHED_ROWS", 2)

    async def scenario(site: KafkaBroker) -> None:
        await find_group(site)
        names = ("t", "u")
        ids = [(await site.create(name, 3)).topic_id for name in names]
        client, numbers = await site.client(), [2, 0, 1]
        commit = offset_commit.OffsetCommitRequest(
            "g",
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name, partitions=[offset_commit.OffsetCommitRequestPartition(n, n + 7) for n in numbers]
                )
                for name in names
            ],
        )
        await client.ask(commit, 9, offset_commit.OffsetCommitResponse)
        named = [
            offset_fetch.OffsetFetchRequestTopics(name, topic_id, numbers)
            for name, topic_id in [("t", ids[0]), ("no", NOBODY), ("u", ids[1])]
        ]
        request = offset_fetch.OffsetFetchRequest(
            "g",
            [offset_fetch.OffsetFetchRequestTopic(each.name, each.partition_indexes) for each in named],
            [offset_fetch.OffsetFetchRequestGroup("g", topics=named)],
        )
        got = await client.ask(request, version, offset_fetch.OffsetFetchResponse)
        topics: list[Any] = [*got.topics, *(topic for group in got.groups for topic in group.topics)]
        found = [[(each.partition_index, each.committed_offset) for each in topic.partitions] for topic in topics]
        known = [(2, 9), (0, 7), (1, 8)]
        assert found == [known, [(number, -1) for number in numbers], known]
        code = Code.UNKNOWN_TOPIC_ID.number if version >= 10 else 0
        assert [{each.error_code for each in topic.partitions} for topic in topics] == [{0}, {code}, {0}]

    run(tmp_path, scenario, **QUICK)


def test_requests_of_many_connections_are_decoded_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is small enough for one turn; those of all connections that arrive together are not. They end too early:
    only their decoding is counted."""
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(turns, "PIECE_SECONDS", PIECE_SECONDS)
    monkeypatch.setattr(turns, "GATHER_SECONDS", 1e-6)
    names = [f"transactional-id-{n:010}" for n in range(NAMES_OF_EACH)]

    async def scenario(site: KafkaBroker) -> None:
        clients, handled = [await site.client() for _ in range(CONNECTIONS)], asyncio.Event()
        whole = clients[0].frame(describe_transactions.DescribeTransactionsRequest(names), 0)
        frame = (len(whole) - 4 - len(names[0])).to_bytes(4, "big") + whole[4 : -len(names[0])]
        assert LARGE_FRAME_BYTES < len(frame) < SCRATCH_FRAME_MAX

        async def handle() -> None:
            await asyncio.gather(*(client.send(frame) for client in clients))
            assert {await client.read_to_end() for client in clients} == {b""}

        handling = asyncio.create_task(handle())
        handling.add_done_callback(lambda _: handled.set())
        assert await count_calls_per_turn(handled) < CALLS_PER_TURN
        await handling

    run(tmp_path, scenario, **QUICK)
