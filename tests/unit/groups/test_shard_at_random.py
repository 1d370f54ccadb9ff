"""Any requests in any order, with moves of the coordinator and the passing of time (rules I17, I18, I19).

The rig checks after each step that the invariants hold, that a replay gives the same state, and that assignments stay.
Here committed offsets are compared with a model beside the shard, and at the end the group becomes empty.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.groups.rig import BOTH, RANGE, Rig, subscription
from tiered.errors import Code
from tiered.groups.limits import GroupSettings
from tiered.groups.requests import (
    NO_OFFSET,
    CommitOffsets,
    CommitOffsetsReply,
    DeleteGroup,
    DeleteOffsets,
    DeleteReply,
    FetchOffsets,
    FetchOffsetsReply,
    JoinGroupReply,
    LeavingMember,
    PartitionOffset,
    SyncGroupReply,
    TopicsDeleted,
)

NEWS = (("range", subscription("u")),)
GROUPS = st.sampled_from(["g", "g", "g", "h"])
PICK = st.integers(0, 5)
PROTOCOLS = st.sampled_from([RANGE, RANGE, RANGE, BOTH, NEWS, tuple(reversed(BOTH)), (("roundrobin", b"?"),)])
INSTANCES = st.sampled_from([None, None, "i", "j"])
SESSIONS = st.sampled_from([6, 30])
TOPICS = st.sampled_from(["t", "u"])
GENERATION = st.sampled_from([0, 0, 0, 0, -1, 1])
"""Difference of a caller's generation from the right one."""
LIMITS = GroupSettings(size_max=4, retention_ms=10**12, retention_check_ms=50_000)


class Groups(RuleBasedStateMachine):
    """Random requests of callers that remember their ids, old ones too."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(LIMITS)
        self.ids: dict[str, list[tuple[str, str | None]]] = {"g": [], "h": []}
        self.parked: dict[int, tuple[str, str | None]] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}

    def pick(self, group: str, number: int) -> tuple[str, str | None]:
        known = self.ids[group]
        return known[-1 - number % len(known)] if known else ("unknown", None)

    def generation(self, group: str, off: int) -> int:
        found = self.rig.shard.state.groups.get(group)
        return (found.generation if found else 1) + off

    def received(self) -> None:
        """Takes member ids from the replies that have come since the last step."""
        for token in [each for each in self.parked if each in self.rig.replies]:
            group, instance = self.parked.pop(token)
            reply = self.rig.replies[token]
            if isinstance(reply, JoinGroupReply) and reply.member_id:
                self.ids[group].append((reply.member_id, instance))

    @initialize(instances=st.lists(INSTANCES, min_size=1, max_size=4, unique_by=lambda each: each or object()))
    def begin(self, instances: list[str | None]) -> None:
        """Begins with a stable group."""
        for instance in instances:
            token = self.rig.join(instance_id=instance, id_required=False, session_ms=30_000)
            self.parked[token] = ("g", instance)
        self.rig.pass_ms(2_000)
        self.received()
        self.rebalance("g", len(instances))

    # -- members -------------------------------------------------------------------------------------------------------

    @rule(
        group=GROUPS, protocols=PROTOCOLS, instance=INSTANCES, required=st.booleans(), session=st.sampled_from([6, 30])
    )
    def join_new(
        self,
        group: str,
        protocols: tuple[tuple[str, bytes], ...],
        instance: str | None,
        required: bool,
        session: int,
    ) -> None:
        token = self.rig.join(
            group=group,
            protocols=protocols,
            instance_id=instance,
            id_required=required,
            skip_known=required,
            session_ms=session * 1_000,
        )
        self.parked[token] = (group, instance)

    @rule(group=GROUPS, number=PICK, protocols=PROTOCOLS)
    def join_again(self, group: str, number: int, protocols: tuple[tuple[str, bytes], ...]) -> None:
        member, instance = self.pick(group, number)
        self.parked[self.rig.join(member, group=group, instance_id=instance, protocols=protocols)] = (group, instance)

    @rule(group=GROUPS)
    def join_all_again(self, group: str) -> None:
        """Lets all members join again, as REBALANCE_IN_PROGRESS in a heartbeat makes them."""
        found = self.rig.shard.state.groups.get(group)
        for member in list(found.members.values()) if found else []:
            token = self.rig.join(
                member.member_id, group=group, instance_id=member.instance_id, protocols=member.protocols
            )
            self.parked[token] = (group, member.instance_id)

    @rule(group=GROUPS, number=PICK, off=GENERATION)
    def sync(self, group: str, number: int, off: int) -> None:
        member, instance = self.pick(group, number)
        token = self.rig.sync(member, self.generation(group, off), group=group, instance_id=instance)
        self.parked[token] = (group, instance)

    @rule(group=GROUPS)
    def sync_all(self, group: str) -> None:
        found = self.rig.shard.state.groups.get(group)
        for member in list(found.members) if found else []:
            given = {each: each.encode() for each in found.members} if found else {}
            self.parked[self.rig.assign(member, self.generation(group, 0), given, group=group)] = (group, None)

    @rule(group=GROUPS, followers=PICK)
    def rebalance(self, group: str, followers: int) -> None:
        """Lets all members join again, and some of them send SyncGroup."""
        self.join_all_again(group)
        self.rig.pass_ms(1_000)
        found = self.rig.shard.state.groups.get(group)
        if found is not None and found.leader is not None:
            for member in [found.leader, *list(found.members)[1 : 1 + followers]]:
                self.parked[self.rig.assign(member, found.generation, {}, group=group)] = (group, None)

    @rule(group=GROUPS, number=PICK)
    def restart(self, group: str, number: int) -> None:
        """Restarts a static member."""
        found = self.rig.shard.state.groups.get(group)
        if found is not None and found.static_members:
            instance = list(found.static_members)[number % len(found.static_members)]
            member = found.members[found.static_members[instance]]
            token = self.rig.join(group=group, instance_id=instance, protocols=member.protocols)
            self.parked[token] = (group, instance)

    @rule(group=GROUPS, number=PICK, off=GENERATION)
    def beat(self, group: str, number: int, off: int) -> None:
        member, instance = self.pick(group, number)
        self.rig.beat(member, self.generation(group, off), group=group, instance_id=instance)

    @rule(group=GROUPS, number=PICK, by_instance=st.booleans())
    def leave(self, group: str, number: int, by_instance: bool) -> None:
        member, instance = self.pick(group, number)
        self.rig.leave(LeavingMember("" if by_instance else member, instance), group=group)

    # -- offsets -------------------------------------------------------------------------------------------------------

    @rule(group=GROUPS, number=PICK, off=GENERATION, topic=TOPICS, offset=st.integers(0, 99), alone=st.booleans())
    def commit(self, group: str, number: int, off: int, topic: str, offset: int, alone: bool) -> None:
        member, instance = ("", None) if alone else self.pick(group, number)
        generation = -1 if alone else self.generation(group, off)
        rows = (PartitionOffset(topic, 0, offset), PartitionOffset(topic, 1, offset))
        reply = self.rig.reply_to(CommitOffsets(group, rows, generation, member, instance), CommitOffsetsReply)
        for row, code in zip(rows, reply.codes, strict=True):
            if code is Code.NONE:
                self.offsets[group, topic, row.partition] = offset

    @rule(group=GROUPS, topic=TOPICS)
    def delete_offsets(self, group: str, topic: str) -> None:
        reply = self.rig.reply_to(DeleteOffsets(group, ((topic, 0),)), DeleteReply)
        if reply.codes == (Code.NONE,):
            self.offsets.pop((group, topic, 0), None)

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        self.rig.ask(TopicsDeleted((topic,)))
        self.offsets = {key: offset for key, offset in self.offsets.items() if key[1] != topic}

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        if self.rig.reply_to(DeleteGroup(group), DeleteReply).code is Code.NONE:
            self.offsets = {key: offset for key, offset in self.offsets.items() if key[0] != group}

    # -- the world -----------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 500, 500, 3_000, 3_000, 7_000, 61_000]))
    def time_passes(self, ms: int) -> None:
        self.rig.pass_ms(ms)

    @rule(steps=st.sampled_from([2, 13]))
    def all_live_on(self, steps: int) -> None:
        """Lets members send heartbeats only."""
        for _ in range(steps):
            self.rig.pass_ms(5_000)
            for name, group in list(self.rig.shard.state.groups.items()):
                for member in list(group.members):
                    self.rig.beat(member, group.generation, group=name)

    @rule(through_image=st.booleans())
    def move(self, through_image: bool) -> None:
        self.rig.reload(through_image=through_image)
        self.parked.clear()

    @rule(number=PICK)
    def hang_up(self, number: int) -> None:
        if self.parked:
            token = list(self.parked)[number % len(self.parked)]
            self.rig.shard.cancel_request(token)
            del self.parked[token]

    @invariant()
    def offsets_are_those_that_were_committed(self) -> None:
        self.received()
        for group in ("g", "h"):
            fetched = self.rig.reply_to(FetchOffsets(group, None), FetchOffsetsReply).offsets
            assert {(group, row.topic, row.partition): row.offset for row in fetched} == {
                key: offset for key, offset in self.offsets.items() if key[0] == group
            }
            assert NO_OFFSET not in [row.offset for row in fetched]

    def teardown(self) -> None:
        """Stops all heartbeats: parked requests get a reply, all members expire, and the group becomes empty (I19)."""
        self.rig.pass_ms(1_000_000)
        for token in self.parked:
            assert isinstance(self.rig.replies[token], JoinGroupReply | SyncGroupReply)
        assert {group.state.value for group in self.rig.shard.state.groups.values()} <= {"Empty"}
        assert not self.rig.shard.state.parked_requests


Groups.TestCase.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)
test_groups_under_any_requests = Groups.TestCase
