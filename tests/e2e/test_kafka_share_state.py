"""Share state over real sockets: InitializeShareGroupState, Read, Write, Delete and ReadShareGroupStateSummary."""

from __future__ import annotations

from typing import Any

from tests.e2e.kafka_site import KafkaBroker, RawClient, run
from tests.scenario import run_by
from tiered.errors import Code
from tiered_api.kafka.protocol.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from tiered_api.kafka.protocol.messages.delete_share_group_state import DeleteShareGroupStateRequest
from tiered_api.kafka.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from tiered_api.kafka.protocol.messages.read_share_group_state import ReadShareGroupStateRequest
from tiered_api.kafka.protocol.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from tiered_api.kafka.protocol.messages.write_share_group_state import WriteShareGroupStateRequest
from tiered_api.kafka.protocol.schema import ZERO_ID

NO_ERROR = (Code.NONE.number, None)


class States:
    """A client that asks for the state of the group `g` in partitions of one topic."""

    def __init__(self, client: RawClient, topic_id: str) -> None:
        self.client = client
        self.topic_id = topic_id
        self.group = "g"

    async def ask(self, tables: Any, name: str, topic: str, version: int, *rows: Any) -> list[Any]:
        request = getattr(tables, f"{name}Request")(self.group, [getattr(tables, topic)(self.topic_id, list(rows))])
        response = await self.client.ask(request, version, getattr(tables, f"{name}Response"))
        [found] = response.results
        assert found.topic_id == self.topic_id
        return list(found.partitions)

    async def initialize(self, *rows: tuple[int, int, int]) -> list[tuple[int, str | None]]:
        made = [initialize_share_group_state.PartitionData(*each) for each in rows]
        name = InitializeShareGroupStateRequest.__name__.removesuffix("Request")
        found = await self.ask(initialize_share_group_state, name, "InitializeStateData", 0, *made)
        return [(each.error_code, each.error_message) for each in found]

    async def write(self, version: int, row: write_share_group_state.PartitionData) -> tuple[int, str | None]:
        name = WriteShareGroupStateRequest.__name__.removesuffix("Request")
        [found] = await self.ask(write_share_group_state, name, "WriteStateData", version, row)
        return found.error_code, found.error_message

    async def read(self, partition: int, leader_epoch: int) -> Any:
        row = read_share_group_state.PartitionData(partition, leader_epoch)
        name = ReadShareGroupStateRequest.__name__.removesuffix("Request")
        [found] = await self.ask(read_share_group_state, name, "ReadStateData", 0, row)
        return found

    async def summarize(self, version: int) -> Any:
        name = ReadShareGroupStateSummaryRequest.__name__.removesuffix("Request")
        row = read_share_group_state_summary.PartitionData(0, -1)
        [found] = await self.ask(read_share_group_state_summary, name, "ReadStateSummaryData", version, row)
        return found

    async def delete(self) -> int:
        name = DeleteShareGroupStateRequest.__name__.removesuffix("Request")
        row = delete_share_group_state.PartitionData(0)
        [found] = await self.ask(delete_share_group_state, name, "DeleteStateData", 0, row)
        return int(found.error_code)


def row(leader_epoch: int, start: int, count: int, *batches: tuple[int, int, int, int]) -> Any:
    """Returns a change of partition 0 under state epoch 1."""
    made = [write_share_group_state.StateBatch(*each) for each in batches]
    return write_share_group_state.PartitionData(0, 1, leader_epoch, start, count, made)


async def open_states(site: KafkaBroker) -> States:
    await site.create("t", 2)
    return States(await site.client(), site.broker.image.topics["t"].topic_id)


@run_by(run, "tmp_path")
async def test_state_is_kept_joined_fenced_and_deleted(site: KafkaBroker) -> None:
    states = await open_states(site)
    assert await states.initialize((0, 1, 3), (1, 1, -1), (0, 1, 3)) == [NO_ERROR] * 3
    assert await states.write(1, row(2, -1, 2, (3, 4, 2, 1), (6, 6, 0, 1))) == NO_ERROR
    assert await states.write(0, row(2, 4, 7, (4, 5, 4, 2))) == NO_ERROR
    found = await states.read(0, 5)
    assert (found.error_code, found.state_epoch, found.start_offset) == (0, 1, 4)
    batches = [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in found.state_batches
    ]
    assert batches == [(4, 5, 4, 2), (6, 6, 0, 1)]
    code, why = await states.write(1, row(4, 5, 0))
    assert (code, why) == (Code.FENCED_LEADER_EPOCH.number, "leader epoch 4 is below 5")
    for version, count in ((0, -1), (1, -1)):
        summary = await states.summarize(version)
        assert (summary.state_epoch, summary.leader_epoch, summary.start_offset) == (1, 5, 4)
        assert summary.delivery_complete_count == count, "version 0 of the last write brought none"
    assert await states.write(1, row(5, 5, 1)) == NO_ERROR
    assert [(await states.summarize(version)).delivery_complete_count for version in (0, 1)] == [-1, 1]
    assert await states.delete() == await states.delete() == 0
    assert (await states.read(0, 5)).error_code == Code.INVALID_REQUEST.number
    assert (await states.read(1, 5)).start_offset == -1


@run_by(run, "tmp_path")
async def test_bad_requests_get_a_code_and_its_reason(site: KafkaBroker) -> None:
    states = await open_states(site)
    assert (await states.read(0, 1)).error_code == Code.INVALID_REQUEST.number
    assert [code for code, _ in await states.initialize((0, 1, -2), (2, 1, 0), (-1, 1, 0))] == [
        Code.INVALID_REQUEST.number, Code.UNKNOWN_TOPIC_OR_PARTITION.number, Code.UNKNOWN_TOPIC_OR_PARTITION.number,
    ]  # fmt: skip
    assert await states.initialize((0, 1, 0)) == [NO_ERROR]
    for batch in ((0, 0, 1, 1), (0, 0, 7, 1), (0, 0, -1, 1), (5, 4, 2, 1), (0, 0, 2, -1)):
        code, why = await states.write(1, row(2, 0, 0, batch))
        assert code == Code.INVALID_REQUEST.number and why is not None and f"{batch[0]} to {batch[1]}" in why
    states.group = ""
    assert [code for code, _ in await states.initialize((0, 1, 0))] == [Code.INVALID_GROUP_ID.number]
    states.group, states.topic_id = "g", ZERO_ID
    assert [code for code, _ in await states.initialize((0, 1, 0))] == [Code.UNKNOWN_TOPIC_OR_PARTITION.number]


@run_by(run, "tmp_path")
async def test_broker_proves_itself_by_its_credential(site: KafkaBroker) -> None:
    states = await open_states(site)
    rows = [initialize_share_group_state.PartitionData(0, 1, 3)]
    topics = [initialize_share_group_state.InitializeStateData(states.topic_id, rows)]
    for credential, code in ((b"wrong", Code.CLUSTER_AUTHORIZATION_FAILED), (site.broker.credential, Code.NONE)):
        request = InitializeShareGroupStateRequest("g", topics, credential)
        response = await states.client.ask(request, 0, initialize_share_group_state.InitializeShareGroupStateResponse)
        assert [each.error_code for each in response.results[0].partitions] == [code.number]
        assert (await states.read(0, -1)).error_code == (Code.INVALID_REQUEST.number if code is not Code.NONE else 0)
