"""The group coordinator of one partition of `__consumer_offsets`, as a pure shard.

Hard state is the committed offsets, and each group as its last rebalance left it. The log holds it, only `apply`
changes it, and a reply makes lasting promises about nothing else. Soft state is rebalances in progress, parked requests
and deadlines. `decide` and `due` change it. A coordinator that moved to another broker starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tiered.groups import requests
from tiered.groups.admin import (
    handle_delete_group,
    handle_describe_group,
    handle_list_groups,
    remove_consumer_group,
    remove_group,
)
from tiered.groups.classic import ClassicGroup, ClassicGroupState
from tiered.groups.consumer.admin import handle_describe_consumer_group, is_empty
from tiered.groups.consumer.epochs import SubscribedTopic
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.consumer.heartbeat import handle_consumer_heartbeat
from tiered.groups.consumer.migration import DOWNGRADED, remove_or_downgrade
from tiered.groups.consumer.sessions import schedule_rebalance, schedule_session
from tiered.groups.decision import (
    CONSUMER_REBALANCE,
    CONSUMER_SESSION,
    EXPIRY,
    JOIN,
    MEMBER,
    SHARE_SESSION,
    SYNC,
    Decision,
    GroupState,
)
from tiered.groups.expiry import find_expired_consumer_offsets, find_expired_offsets
from tiered.groups.invariants import find_violations
from tiered.groups.join import handle_join_group
from tiered.groups.limits import MIGRATION_POLICIES, ConsumerTimeouts, GroupSettings, MigrationPolicy
from tiered.groups.log_state import LogState
from tiered.groups.member_requests import handle_heartbeat, handle_leave_group, handle_sync_group
from tiered.groups.offsets import (
    delete_topic_offsets,
    handle_commit_offsets,
    handle_commit_transactional_offsets,
    handle_delete_offsets,
    handle_fetch_offsets,
    lower_offsets,
    offset_tombstone,
)
from tiered.groups.rebalance import on_join_timeout, on_member_timeout, on_sync_timeout, prepare_rebalance
from tiered.groups.records import read_group
from tiered.groups.requests import Event, Reply, Request
from tiered.groups.share.admin import handle_describe_share_group
from tiered.groups.share.heartbeat import (
    confirm_share_state,
    handle_share_heartbeat,
    remove_share_member,
    schedule_share_session,
)
from tiered.quotas.shares import Holdings
from tiered.shard import UNAWAITED, CoordinatorRecord, CoordinatorResult, Now, ProducerIdAndEpoch

EXPIRY_SLICE_OFFSETS = 10_000
"""Offsets that one turn of the expiry looks at, or a few more, so that no turn takes long."""


class GroupShard:
    """Decides the requests of one coordinator partition, as a `CoordinatorShard`.

    `new_uuid` returns a fresh UUID as text. `find_topic_id` returns the id of the topic that has a name now, "" if
    there is none. `find_topic` returns more of it, and the same while `metadata_version` stays. `holdings` are those of
    all shards of the broker; None if there is no other one. `find_own_timeouts` returns those of a group with settings
    of its own, else None. `find_migration_policy` returns the policy in force now. `next_due_ms` (None: never) is on
    the monotonic clock; it may change with each call.
    """

    def __init__(
        self,
        settings: GroupSettings,
        new_uuid: Callable[[], str],
        find_topic_id: Callable[[str], str] = lambda topic: "",
        holdings: Holdings | None = None,
        find_topic: Callable[[str], SubscribedTopic | None] = lambda topic: None,
        metadata_version: Callable[[], int] = lambda: 0,
        match_topics: Callable[[str], frozenset[str]] | None = None,
        find_own_timeouts: Callable[[str], ConsumerTimeouts | None] = lambda group: None,
        find_migration_policy: Callable[[], MigrationPolicy] = lambda: MIGRATION_POLICIES["bidirectional"],
    ) -> None:
        self.state = GroupState(
            settings,
            new_uuid,
            find_topic_id=find_topic_id,
            find_topic=find_topic,
            metadata_version=metadata_version,
            match_topics=match_topics,
            find_own_timeouts=find_own_timeouts,
            find_migration_policy=find_migration_policy,
        )
        if holdings is not None:
            self.state.holdings = holdings
        self._groups_to_expire: list[str] = []

    # -- the log -------------------------------------------------------------------------------------------------------

    def apply(self, records: Iterable[CoordinatorRecord]) -> None:
        """Applies records in order: the only way in which hard state changes. Skips records of other kinds and formats.

        A load applies the records of a snapshot, then those of the log.
        """
        self.state.log_state.apply(records)
        self.state.holders.settle()

    def end_transaction(self, marker: ProducerIdAndEpoch, is_commit: bool) -> None:
        """Applies a marker of the log: the pending offsets of the producer are committed or dropped."""
        self.state.log_state.end_transaction(marker, is_commit)
        self.state.holders.settle()

    def on_loaded(self, now: Now) -> None:
        """Builds the groups once all records are loaded. Each member gets a fresh session.

        A group with more members than the limit starts a rebalance, in which it shrinks.
        """
        decision = Decision(self.state, now)
        for name, raw in self.state.log_state.groups.items():
            if name in self.state.log_state.consumer_groups:
                continue  # a torn move from one protocol to the other: the later one counts
            value = read_group(raw)
            group = self.state.groups[name] = ClassicGroup.from_value(name, value, self.state.protocol_bytes)
            for member in group.members.values():
                decision.schedule_heartbeat(group, member)
            if len(group.members) > self.state.settings.size_max:
                prepare_rebalance(decision, group, f"the group has more than {self.state.settings.size_max} members")
            elif group.members and value.leader is None:
                prepare_rebalance(decision, group, DOWNGRADED)
        consumer_groups = self.state.log_state.consumer_groups
        for name, consumer_group in consumer_groups.items():
            for member_id, consumer in consumer_group.members.items():
                schedule_session(decision, name, member_id, consumer.metadata)
                schedule_rebalance(decision, name, member_id, consumer)
        share_groups = self.state.log_state.share_groups
        for name, share_group in share_groups.items():
            for member_id in share_group.members:
                schedule_share_session(decision, name, member_id)
        for name in (*self.state.log_state.offsets, *self.state.log_state.pending.groups()):
            if name not in self.state.groups and name not in consumer_groups:
                self.state.groups[name] = ClassicGroup(name, now.wall_ms, self.state.protocol_bytes)
        self.state.holders.settle()
        self._schedule_expiry(now)

    def snapshot(self) -> Iterator[list[CoordinatorRecord]]:
        """Yields the hard state as the fewest records that give it, one group at a time."""
        return self.state.log_state.snapshot()

    @property
    def log_state(self) -> LogState:
        """The state of the log."""
        return self.state.log_state

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decide(self, request: Request, now: Now, token: int = UNAWAITED) -> CoordinatorResult[Reply, Event]:
        """Decides a request. The reply for `token` is in this result or in a later one.

        A reply holds once the records of its result are committed.
        """
        decision = Decision(self.state, now)
        match request:
            case requests.Heartbeat():
                decision.reply(token, handle_heartbeat(decision, request))
            case requests.ConsumerHeartbeat():
                decision.reply(token, handle_consumer_heartbeat(decision, request))
            case requests.ShareHeartbeat():
                decision.reply(token, handle_share_heartbeat(decision, request))
            case requests.SharePartitionsInitialized():
                confirm_share_state(decision, request)
            case requests.CommitOffsets():
                decision.reply(token, handle_commit_offsets(decision, request))
            case requests.CommitTransactionalOffsets():
                decision.reply(token, handle_commit_transactional_offsets(decision, request))
            case requests.FetchOffsets():
                decision.reply(token, handle_fetch_offsets(self.state, request))
            case requests.JoinGroup():
                handle_join_group(decision, request, token)
            case requests.SyncGroup():
                handle_sync_group(decision, request, token)
            case requests.LeaveGroup():
                decision.reply(token, handle_leave_group(decision, request))
            case requests.DeleteOffsets():
                decision.reply(token, handle_delete_offsets(decision, request))
            case requests.TopicsDeleted():
                delete_topic_offsets(decision, request.topics)
            case requests.LowerOffsets():
                lower_offsets(decision, request.offsets)
            case requests.DescribeGroup():
                decision.reply(token, handle_describe_group(self.state, request))
            case requests.DescribeConsumerGroup():
                groups = self.state.log_state.consumer_groups
                decision.reply(token, handle_describe_consumer_group(groups, request))
            case requests.DescribeShareGroup():
                decision.reply(token, handle_describe_share_group(self.state.log_state.share_groups, request))
            case requests.ListGroups():
                decision.reply(token, handle_list_groups(self.state, request))
            case requests.DeleteGroup():
                decision.reply(token, handle_delete_group(decision, request))
        self.state.holders.settle()
        return decision.result()

    def due(self, now: Now) -> CoordinatorResult[Reply, Event]:
        """Handles all deadlines that have come."""
        decision = Decision(self.state, now)
        for kind, name, member_id in self.state.deadlines.pop_due(now.mono_ms):
            if kind == EXPIRY:
                self._expire_offsets(decision)
                continue
            if kind in (CONSUMER_SESSION, CONSUMER_REBALANCE):
                consumer_group = self.state.log_state.consumer_groups.get(name)
                if consumer_group is not None and member_id in consumer_group.members:
                    remove_or_downgrade(decision, consumer_group, member_id)
                continue
            if kind == SHARE_SESSION:
                share_group = self.state.log_state.share_groups.get(name)
                if share_group is not None and member_id in share_group.members:
                    remove_share_member(decision, share_group, member_id)
                continue
            group = self.state.groups[name]
            if kind == MEMBER:
                on_member_timeout(decision, group, member_id)
            elif kind == JOIN:
                on_join_timeout(decision, group)
            elif kind == SYNC:
                on_sync_timeout(decision, group)
        self.state.holders.settle()
        return decision.result()

    @property
    def next_due_ms(self) -> int | None:
        """The earliest deadline; None if there is none."""
        return self.state.deadlines.next_due_ms()

    def cancel_request(self, token: int) -> None:
        """Drops the parked request of a caller that is gone; it gets no reply any more.

        A new member that does not know its id cannot come back with it. It expires at once, so that the others do not
        wait for it.
        """
        parked = self.state.parked_requests.pop(token, None)
        if parked is not None and parked.member.is_new and not parked.member.knows_id:
            self.state.deadlines.set((MEMBER, parked.group, parked.member.member_id), 0)

    def find_violations(self) -> tuple[str, ...]:
        """Returns a sentence for each broken rule of the shard's state."""
        return tuple(find_violations(self.state))

    # -- expiry --------------------------------------------------------------------------------------------------------

    def _expire_offsets(self, decision: Decision) -> None:
        """Removes expired offsets, and an empty group with its last offset: one slice in each turn."""
        if not self._groups_to_expire:
            self._groups_to_expire = sorted({*self.state.groups, *self.state.log_state.consumer_groups}, reverse=True)
        looked_at = 0
        while self._groups_to_expire and looked_at < EXPIRY_SLICE_OFFSETS:
            name = self._groups_to_expire.pop()
            group = self.state.groups.get(name)
            if group is not None:
                looked_at += self._expire_group(decision, group)
            consumer_group = self.state.log_state.consumer_groups.get(name)
            if consumer_group is not None:
                looked_at += self._expire_consumer_group(decision, consumer_group)
        if self._groups_to_expire:
            self.state.deadlines.set((EXPIRY, "", ""), decision.now.mono_ms + 1)
        else:
            self._schedule_expiry(decision.now)

    def _expire_group(self, decision: Decision, group: ClassicGroup) -> int:
        log_state = self.state.log_state
        offsets = log_state.offsets.get(group.name, {})
        count = sum(map(len, offsets.values()))
        expired_keys = list(
            find_expired_offsets(
                group, offsets, log_state.pending, decision.now.expiry_ms, self.state.settings.retention_ms
            )
        )
        decision.write(*[offset_tombstone(group.name, topic, partition) for topic, partition in expired_keys])
        if (
            group.state is ClassicGroupState.EMPTY
            and not group.pending_members
            and not log_state.has_offsets(group.name)
        ):
            remove_group(decision, group)
        return count + 1

    def _expire_consumer_group(self, decision: Decision, group: ConsumerGroup) -> int:
        log_state = self.state.log_state
        offsets = log_state.offsets.get(group.name, {})
        count = sum(map(len, offsets.values()))
        cutoff_ms = decision.now.expiry_ms - self.state.settings.retention_ms
        expired_keys = list(find_expired_consumer_offsets(group, offsets, log_state.pending, cutoff_ms))
        decision.write(*[offset_tombstone(group.name, topic, partition) for topic, partition in expired_keys])
        if is_empty(group) and not log_state.has_offsets(group.name):
            remove_consumer_group(decision, group)
        return count + 1

    def _schedule_expiry(self, now: Now) -> None:
        self.state.deadlines.set((EXPIRY, "", ""), now.mono_ms + self.state.settings.retention_check_ms)
