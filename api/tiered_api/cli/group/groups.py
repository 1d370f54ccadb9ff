"""`tiered group list|describe|delete|offset-delete`: the members, offsets and lag of groups."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.cli.deletion_rights import may_delete_group
from tiered_api.cli.exits import Exit
from tiered_api.cli.group.consumer_groups import GroupEpochs, describe_consumer_group
from tiered_api.cli.group.unread import find_unread_times
from tiered_api.cli.output import Row, format_rows, print_json, print_lines, print_rows
from tiered_api.cli.reach import open_client, parse_numbers
from tiered_api.cli.status import DRY_RUN, OK, format_status, print_outcomes
from tiered_api.cli.topic.describe import partitions_of, print_errors, topics_by_name
from tiered_api.cli.topic.topics import compile_pattern
from tiered_api.kafka.client.client import KafkaClient, code_from_number, only_result, to_refused
from tiered_api.kafka.client.group_member import read_assignment, read_subscription
from tiered_api.kafka.client.group_offsets import delete_offsets, fetch_committed_offsets
from tiered_api.kafka.client.leader_routing import (
    EARLIEST,
    LATEST,
    PartitionOutcomes,
    find_coordinator,
    list_offsets,
    send_to_coordinator,
)
from tiered_api.kafka.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tiered_api.kafka.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tiered_api.kafka.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

DEAD = "Dead"
EMPTY_GROUP = "Empty"


@dataclass(slots=True)
class GroupReport:
    """The description of a group; `rows` are its partitions."""

    name: str
    coordinator: int
    state: str
    balancer: str
    members: list[DescribedGroupMember]
    epochs: GroupEpochs | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def lag(self) -> int:
        """Number of records that the group has yet to read."""
        return sum(max(row["lag"] or 0, 0) for row in self.rows)

    @property
    def lag_seconds(self) -> int | None:
        """Age of the oldest unread record, None if there is none, or if it is not known."""
        return max((row["lag_seconds"] for row in self.rows if row["lag_seconds"] is not None), default=None)

    def note_unread(self, times: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Adds the age of the next unread record to each partition. A producer chooses the time: it may lie ahead."""
        for row in self.rows:
            unread_ms = times.get(TopicPartition(row["topic"], row["partition"]))
            row["lag_seconds"] = None if unread_ms is None else max(0, now_ms - unread_ms) // 1000

    def head(self) -> dict[str, Any]:
        """Returns the fields of the group as a whole."""
        return {
            "group": self.name,
            "type": "classic" if self.epochs is None else "consumer",
            "coordinator": self.coordinator,
            "state": self.state,
            "balancer": self.balancer,
            "epoch": None if self.epochs is None else self.epochs.group,
            "assignment_epoch": None if self.epochs is None else self.epochs.assignment,
            "members": len(self.members),
            "total_lag": self.lag,
            "lag_seconds": self.lag_seconds,
        }


async def list_groups(args: Namespace) -> int:
    """Lists groups with their states."""
    states = [state for text in args.states for state in text.split(",")]
    async with open_client(args) as client:
        found = await list_all_groups(client, states)
    rows = [
        {
            "broker": node,
            "group": group.group_id,
            "state": group.group_state,
            "protocol_type": group.protocol_type,
            "type": group.group_type or "classic",
        }
        for node, group in sorted(found, key=lambda each: (each[1].group_id, each[0]))
    ]
    print_rows(rows, args.format)
    return Exit.OK


async def describe(args: Namespace) -> int:
    """Describes groups: members, offsets and lag."""
    async with open_client(args) as client:
        outcomes = await describe_groups(client, args)
    found = [outcome for outcome in outcomes if isinstance(outcome, GroupReport)]
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    for number, group in enumerate(found):
        if args.format == "json":
            print_json({**group.head(), "partitions": group.rows} if not args.summary else group.head())
            continue
        if number:
            print_lines([""])
        print_lines(format_group(group, args))
    print_errors(refusals)
    return Exit.FAILED if refusals else Exit.OK


async def delete_groups(args: Namespace) -> int:
    """Deletes groups that have no members."""
    rows: list[Row] = []
    async with open_client(args) as client:
        for name in await select_groups(client, args):
            if args.dry_run:
                rows.append(await _plan_deletion(client, name))
                continue
            request = DeleteGroupsRequest(groups_names=[name])
            got = await send_to_coordinator(
                client, name, request, DeleteGroupsResponse, lambda got: only_result(got.results).error_code
            )
            rows.append({"group": name, "status": format_status(only_result(got.results).error_code, None)})
    return print_outcomes(rows, args.format)


async def offset_delete(args: Namespace) -> int:
    """Deletes the committed offsets of a group for topics."""
    async with open_client(args) as client:
        partitions = await _partitions(client, args.topics)
        if args.dry_run:
            return print_outcomes(await _plan_offset_deletion(client, args.group, partitions), args.format)
        got = await delete_offsets(client, args.group, partitions)
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "status": format_status(no.code.number, None) if no else OK}
        for tp, no in sorted(got.items(), key=lambda each: each[0])
    ]
    return print_outcomes(rows, args.format)


# -- list -------------------------------------------------------------------------------------------------------------


async def list_all_groups(client: KafkaClient, states: Sequence[str] = ()) -> list[tuple[int, ListedGroup]]:
    """Returns every group with its coordinator."""
    await client.fetch_metadata([])
    out = []
    for node in sorted(client.brokers):
        got = await client.send(ListGroupsRequest(states_filter=list(states)), ListGroupsResponse, node_id=node)
        if got.error_code:
            raise to_refused(got.error_code, f"groups of broker {node}")
        out += [(node, group) for group in got.groups]
    return out


# -- describe ---------------------------------------------------------------------------------------------------------


async def select_groups(client: KafkaClient, args: Namespace) -> list[str]:
    """Returns the groups that a command is for. Raises `Refused` if a regular expression matches none."""
    if not args.regex:
        return list(dict.fromkeys(args.groups))
    forms = [compile_pattern(pattern) for pattern in args.groups]
    names = {group.group_id for _, group in await list_all_groups(client)}
    found = sorted(name for name in names if any(form.fullmatch(name) for form in forms))
    if not found:
        raise Refused(Code.GROUP_ID_NOT_FOUND, f"no group matches {' '.join(args.groups)}")
    return found


async def describe_groups(client: KafkaClient, args: Namespace) -> list[GroupReport | Refused]:
    """Describes the groups that a command is for, each with its own outcome."""
    out: list[GroupReport | Refused] = []
    for name in await select_groups(client, args):
        try:
            found = await describe_group(client, name)
        except Refused as no:
            out.append(no)
            continue
        positions = {
            TopicPartition(row["topic"], row["partition"]): row["current_offset"]
            for row in found.rows
            if row["current_offset"] is not None and (row["lag"] or 0) > 0
        }
        if positions:
            found.note_unread(await find_unread_times(client, positions), client.clock.wall_ms())
        out.append(found)
    return out


async def describe_group(client: KafkaClient, name: str) -> GroupReport:
    """Describes a group with all partitions that it reads or has committed. Raises `Refused` if there is no such
    group."""
    request = DescribeGroupsRequest(groups=[name])
    got = await send_to_coordinator(client, name, request, DescribeGroupsResponse, lambda got: got.groups[0].error_code)
    group = got.groups[0]
    epochs = None
    if group.group_state in ("", DEAD):
        consumer_group = await describe_consumer_group(client, name)
        if consumer_group is not None:
            group, epochs = consumer_group
    if group.error_code and code_from_number(group.error_code) is not Code.GROUP_ID_NOT_FOUND:
        raise to_refused(group.error_code, f"group {name}", group.error_message)
    offsets = await fetch_committed_offsets(client, name)
    if (group.error_code or group.group_state == DEAD) and not offsets:
        raise Refused(Code.GROUP_ID_NOT_FOUND, f"no group {name}")
    owners = _partition_owners(group)
    # A group that never had members may consist of offsets only.
    state = EMPTY_GROUP if group.error_code or group.group_state == DEAD else group.group_state
    made = GroupReport(name, await find_coordinator(client, name), state, group.protocol_data, group.members, epochs)
    wanted = sorted({*offsets, *owners})
    starts = await list_offsets(client, dict.fromkeys(wanted, EARLIEST))
    ends = await list_offsets(client, dict.fromkeys(wanted, LATEST))
    made.rows = [_row(tp, offsets.get(tp), starts, ends, owners.get(tp)) for tp in wanted]
    return made


def _partition_owners(group: DescribedGroup) -> dict[TopicPartition, DescribedGroupMember]:
    """Returns the member of each partition, by the assignments of a consumer group."""
    out = {}
    for member in group.members if group.protocol_type == "consumer" else ():
        for tp in read_assignment(member.member_assignment):
            out[tp] = member
    return out


def _row(
    tp: TopicPartition,
    current: int | None,
    starts: PartitionOutcomes[tuple[int, int]],
    ends: PartitionOutcomes[tuple[int, int]],
    owner: DescribedGroupMember | None,
) -> dict[str, Any]:
    start, end = starts.get(tp), ends.get(tp)
    fault = next((format_status(each.code.number, None) for each in (start, end) if isinstance(each, Refused)), None)
    first = None if start is None or isinstance(start, Refused) else start[0]
    last = None if end is None or isinstance(end, Refused) else end[0]
    row: dict[str, Any] = {
        "topic": tp.topic,
        "partition": tp.partition,
        "current_offset": current,
        "log_start_offset": first,
        "log_end_offset": last,
        "lag": None if last is None else last - (current if current is not None else first or 0),
        "lag_seconds": None,
        "member_id": owner.member_id if owner else None,
        "instance_id": owner.group_instance_id if owner else None,
        "client_id": owner.client_id if owner else None,
        "host": owner.client_host if owner else None,
    }
    return {**row, "error": fault} if fault else row


def format_group(group: GroupReport, args: Namespace) -> list[str]:
    """Returns the lines of a group for people."""
    lines = []
    if not args.commits:
        head = {name: value for name, value in group.head().items() if value is not None}
        width = max(len(name) for name in head) + 2
        lines += [f"{name.upper().replace('_', '-'):<{width}}{value}" for name, value in head.items()]
    if args.summary:
        return lines
    if group.rows and not args.commits:
        lines.append("")
    # Columns that only some groups have.
    rare = {
        name for name in ("lag_seconds", "instance_id", "error") if all(row.get(name) is None for row in group.rows)
    }
    lines += format_rows(
        [{name: row.get(name) for name in (*group.rows[0], "error") if name not in rare} for row in group.rows]
    )
    return lines + [_explain_negative_lag(group.name, row) for row in group.rows if (row["lag"] or 0) < 0]


def _explain_negative_lag(group: str, row: dict[str, Any]) -> str:
    """Returns what it means that a group has committed an offset above the end. Kafka's tool shows the number alone."""
    tp = TopicPartition(row["topic"], row["partition"])
    return (
        f"{tp} ends at {row['log_end_offset']}, below the committed offset {row['current_offset']}: the group gets no"
        f" record of it until it has grown past that, and skips those before. Stop the members, then run"
        f" `tiered group seek {group} --to end`."
    )


# -- delete -----------------------------------------------------------------------------------------------------------


async def _plan_deletion(client: KafkaClient, name: str) -> Row:
    """Returns the row of a group that would be deleted: how many members and committed offsets it has."""
    try:
        group = await describe_group(client, name)
    except Refused as no:
        return {"group": name, "members": None, "offsets": None, "status": format_status(no.code.number, None)}
    offsets = sum(row["current_offset"] is not None for row in group.rows)
    code = Code.NON_EMPTY_GROUP if group.members else Code.NONE
    if not await may_delete_group(client, name):
        code = Code.GROUP_AUTHORIZATION_FAILED
    status = format_status(code.number, None, dry_run=True)
    return {"group": name, "members": len(group.members), "offsets": offsets, "status": status}


async def _plan_offset_deletion(client: KafkaClient, name: str, partitions: Mapping[str, Sequence[int]]) -> list[Row]:
    """Returns the rows of offsets that would be deleted. Those of a topic that members read stay."""
    group = await describe_group(client, name)
    if not await may_delete_group(client, name):
        raise to_refused(Code.GROUP_AUTHORIZATION_FAILED.number, f"group {name}")
    read = {topic for member in group.members for topic in read_subscription(member.member_metadata)}
    offsets = {(row["topic"], row["partition"]): row["current_offset"] for row in group.rows}
    refused = format_status(Code.GROUP_SUBSCRIBED_TO_TOPIC.number, None)
    return [
        {
            "topic": topic,
            "partition": number,
            "offset": offsets.get((topic, number)),
            "status": refused if topic in read else DRY_RUN,
        }
        for topic, numbers in sorted(partitions.items())
        for number in numbers
    ]


async def _partitions(client: KafkaClient, texts: Iterable[str]) -> dict[str, list[int]]:
    """Parses `topic` (all its partitions) or `topic:0,1`."""
    out: dict[str, list[int]] = {}
    for text in texts:
        name, colon, only = text.partition(":")
        if colon:
            out.setdefault(name, []).extend(parse_numbers(only, "-t"))
            continue
        topic = (await topics_by_name(client, [name]))[name]
        if isinstance(topic, Refused):
            raise topic
        out.setdefault(name, []).extend(tp.partition for tp in partitions_of(topic))
    return out
