"""Translation of coordinator requests to messages of Kafka's protocol, and of the replies back."""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups import requests as r
from tiered_api.kafka.protocol.messages import delete_groups as dg
from tiered_api.kafka.protocol.messages import describe_groups as de
from tiered_api.kafka.protocol.messages import heartbeat as hb
from tiered_api.kafka.protocol.messages import join_group as jg
from tiered_api.kafka.protocol.messages import leave_group as lg
from tiered_api.kafka.protocol.messages import list_groups as ls
from tiered_api.kafka.protocol.messages import offset_commit as oc
from tiered_api.kafka.protocol.messages import offset_delete as od
from tiered_api.kafka.protocol.messages import offset_fetch as of
from tiered_api.kafka.protocol.messages import sync_group as sg
from tiered_api.kafka.protocol.schema import Message

CODES = {code.number: code for code in Code}

_RESPONSES: dict[type, type[Message]] = {
    r.JoinGroup: jg.JoinGroupResponse,
    r.SyncGroup: sg.SyncGroupResponse,
    r.Heartbeat: hb.HeartbeatResponse,
    r.LeaveGroup: lg.LeaveGroupResponse,
    r.CommitOffsets: oc.OffsetCommitResponse,
    r.FetchOffsets: of.OffsetFetchResponse,
    r.DeleteOffsets: od.OffsetDeleteResponse,
    r.DescribeGroup: de.DescribeGroupsResponse,
    r.ListGroups: ls.ListGroupsResponse,
    r.DeleteGroup: dg.DeleteGroupsResponse,
}


def response_of(request: r.Request) -> type[Message]:
    """Returns the type of the response message."""
    return _RESPONSES[type(request)]


def to_wire(request: r.Request) -> tuple[Message, int]:
    """Returns the message, and the version that can express the request."""
    match request:
        case r.JoinGroup():
            version = 9 if request.supports_skip_assignment else 8
            protocols = [jg.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in request.protocols]
            message = jg.JoinGroupRequest(
                group_id=request.group,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                member_id=request.member_id,
                group_instance_id=request.instance_id,
                protocol_type=request.protocol_type,
                protocols=protocols,
                reason=request.reason,
            )
            return message, version if request.member_id_required else 3
        case r.SyncGroup():
            assignments = [
                sg.SyncGroupRequestAssignment(member_id=member, assignment=given)
                for member, given in request.assignments
            ]
            return sg.SyncGroupRequest(
                group_id=request.group,
                generation_id=request.generation,
                member_id=request.member_id,
                group_instance_id=request.instance_id,
                protocol_type=request.protocol_type,
                protocol_name=request.protocol,
                assignments=assignments,
            ), 5
        case r.Heartbeat():
            return hb.HeartbeatRequest(
                group_id=request.group,
                generation_id=request.generation,
                member_id=request.member_id,
                group_instance_id=request.instance_id,
            ), 4
        case r.LeaveGroup():
            members = [
                lg.MemberIdentity(member_id=each.member_id, group_instance_id=each.instance_id, reason=each.reason)
                for each in request.members
            ]
            return lg.LeaveGroupRequest(group_id=request.group, members=members), 5
        case r.DescribeGroup():
            return de.DescribeGroupsRequest(groups=[request.group]), 6
        case r.ListGroups():
            return ls.ListGroupsRequest(states_filter=[*request.states], types_filter=[*request.types]), 5
        case r.DeleteGroup():
            return dg.DeleteGroupsRequest(groups_names=[request.group]), 2
        case _:
            return _offsets_to_wire(request)


def _offsets_to_wire(request: r.Request) -> tuple[Message, int]:
    match request:
        case r.CommitOffsets():
            topics = [
                oc.OffsetCommitRequestTopic(
                    name=row.topic,
                    partitions=[
                        oc.OffsetCommitRequestPartition(
                            partition_index=row.partition,
                            committed_offset=row.offset,
                            committed_leader_epoch=row.leader_epoch,
                            committed_metadata=row.metadata,
                        )
                    ],
                )
                for row in request.offsets
            ]
            return oc.OffsetCommitRequest(
                group_id=request.group,
                generation_id_or_member_epoch=request.generation,
                member_id=request.member_id,
                group_instance_id=request.instance_id,
                retention_time_ms=request.retention_ms,
                topics=topics,
            ), 9 if request.retention_ms == r.NO_RETENTION else 4
        case r.FetchOffsets():
            asked = (
                None
                if request.partitions is None
                else [of.OffsetFetchRequestTopics(name=name, partition_indexes=[p]) for name, p in request.partitions]
            )
            group = of.OffsetFetchRequestGroup(
                group_id=request.group, member_id=request.member_id, member_epoch=request.member_epoch, topics=asked
            )
            return of.OffsetFetchRequest(groups=[group]), 9
        case r.DeleteOffsets():
            gone = [
                od.OffsetDeleteRequestTopic(name=name, partitions=[od.OffsetDeleteRequestPartition(partition_index=p)])
                for name, p in request.partitions
            ]
            return od.OffsetDeleteRequest(group_id=request.group, topics=gone), 0
        case _:
            raise AssertionError(request)


def from_wire(asked: r.Request, answer: Message) -> r.Reply:
    """Returns the reply as a value of the coordinator."""
    match answer:
        case jg.JoinGroupResponse():
            assert isinstance(asked, r.JoinGroup)
            # The older version does not name the type.
            told_type, asked_type = asked.member_id_required, asked.protocol_type
            return r.JoinGroupReply(
                CODES[answer.error_code],
                answer.member_id,
                answer.generation_id,
                answer.protocol_type if told_type else asked_type if answer.error_code == 0 else None,
                answer.protocol_name or None,
                answer.leader,
                answer.skip_assignment,
                tuple(r.JoinedMember(m.member_id, m.group_instance_id, m.metadata) for m in answer.members),
            )
        case sg.SyncGroupResponse():
            return r.SyncGroupReply(
                CODES[answer.error_code], answer.protocol_type, answer.protocol_name, bytes(answer.assignment)
            )
        case hb.HeartbeatResponse():
            return r.HeartbeatReply(CODES[answer.error_code])
        case lg.LeaveGroupResponse():
            return r.LeaveGroupReply(CODES[answer.error_code], tuple(CODES[each.error_code] for each in answer.members))
        case de.DescribeGroupsResponse():
            (group,) = answer.groups
            members = tuple(
                r.DescribedMember(
                    m.member_id, m.group_instance_id, m.client_id, m.client_host, m.member_metadata, m.member_assignment
                )
                for m in group.members
            )
            code = CODES[group.error_code]
            return r.DescribeGroupReply(
                code, group.group_id, group.group_state, group.protocol_type, group.protocol_data, members
            )
        case ls.ListGroupsResponse():
            return r.ListGroupsReply(
                tuple(
                    sorted(
                        r.ListedGroup(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in answer.groups
                    )
                )
            )
        case _:
            return _offsets_from_wire(asked, answer)


def _offsets_from_wire(asked: r.Request, answer: Message) -> r.Reply:
    match answer:
        case dg.DeleteGroupsResponse():
            return r.DeleteReply(CODES[answer.results[0].error_code])
        case oc.OffsetCommitResponse():
            return r.CommitOffsetsReply(tuple(CODES[p.error_code] for topic in answer.topics for p in topic.partitions))
        case of.OffsetFetchResponse():
            (group,) = answer.groups
            rows = tuple(
                r.PartitionOffset(
                    topic.name, p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata or ""
                )
                for topic in group.topics
                for p in topic.partitions
            )
            return r.FetchOffsetsReply(CODES[group.error_code], rows)
        case od.OffsetDeleteResponse():
            assert isinstance(asked, r.DeleteOffsets)
            told = {(topic.name, p.partition_index): p.error_code for topic in answer.topics for p in topic.partitions}
            codes = () if answer.error_code else tuple(CODES[told[each]] for each in asked.partitions)
            return r.DeleteReply(CODES[answer.error_code], codes)
        case _:
            raise AssertionError(answer)
