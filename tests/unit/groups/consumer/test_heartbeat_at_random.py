"""Any heartbeats in any order, with lost replies, moves of the coordinator, and topics that change (rules I17, I19).

The rig checks after each step that the invariants hold, and that a replay gives the same state. Here each client owns
what its last reply gave it, and no partition has two owners at any time. At the end all members get their targets.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.groups.consumer.rig import T, U, find_owners
from tests.unit.groups.rig import G, Rig
from tiered.errors import Code
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.epochs import ConsumerGroupState
from tiered.groups.limits import GroupSettings
from tiered.groups.requests import ConsumerHeartbeatReply

CLIENTS = st.sampled_from(["a", "b", "c", "d"])
INSTANCES = {"c": "i", "d": "j"}
"""Static members. Each run of one has a member id of its own."""
REJOIN = (Code.FENCED_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID, Code.UNRELEASED_INSTANCE_ID)
SUBSCRIPTIONS = st.sampled_from([("t",), ("t", "u"), ("u",)])


class Client:
    """A consumer. `owned` is what it works on. After a reply that was lost, its next request says all again."""

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.epoch = 0
        self.owned: Assignment = {}
        self.topics: tuple[str, ...] = ("t",)
        self.says_all = False

    def take(self, reply: ConsumerHeartbeatReply) -> None:
        """Does what the reply says. A client that is fenced gives up everything, and joins again."""
        if reply.code is not Code.NONE:
            self.epoch, self.owned = 0, {}
            return
        self.epoch = reply.member_epoch
        if reply.assignment is not None:
            self.owned = reply.assignment


class Consumers(RuleBasedStateMachine):
    """Clients of one group."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(GroupSettings(consumer_session_timeout_ms=50_000))
        self.rig.set_topic("t", 4, T)
        self.rig.set_topic("u", 2, U)
        self.clients: dict[str, Client] = {}
        self.runs = 0

    def beat(self, client: Client, *, is_lost: bool = False) -> None:
        is_full = client.says_all or client.epoch == 0
        reply = self.rig.consume(
            client.member_id, client.epoch, owned=client.owned, topics=client.topics if is_full else None,
            rebalance_ms=60_000 if is_full else -1, instance_id=client.instance_id,
        )  # fmt: skip
        assert reply.code in (Code.NONE, *REJOIN), reply
        client.says_all = is_lost
        if not is_lost:
            client.take(reply)

    @rule(name=CLIENTS, topics=SUBSCRIPTIONS, is_lost=st.booleans())
    def start_or_subscribe(self, name: str, topics: tuple[str, ...], is_lost: bool) -> None:
        if name not in self.clients:
            self.runs += 1
            self.clients[name] = Client(f"{name}{self.runs}", INSTANCES.get(name))
        self.clients[name].topics, self.clients[name].says_all = topics, True
        self.beat(self.clients[name], is_lost=is_lost)

    @rule(name=CLIENTS, is_lost=st.booleans())
    def heartbeat(self, name: str, is_lost: bool) -> None:
        if name in self.clients:
            self.beat(self.clients[name], is_lost=is_lost)

    @rule(name=CLIENTS)
    def stop(self, name: str) -> None:
        """A client leaves. A static one says that it will be back."""
        client = self.clients.pop(name, None)
        if client is not None:
            epoch = -1 if client.instance_id is None else -2
            reply = self.rig.consume(client.member_id, epoch, instance_id=client.instance_id)
            assert reply.code in (Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.GROUP_ID_NOT_FOUND)

    @rule(name=CLIENTS)
    def crash(self, name: str) -> None:
        """A client is gone without a word. Others get its partitions after its session."""
        if self.clients.pop(name, None) is not None:
            for _ in range(3):
                self.rig.pass_ms(20_000)
                for client in self.clients.values():
                    self.beat(client)

    @rule(count=st.integers(1, 6))
    def change_partitions(self, count: int) -> None:
        self.rig.set_topic("t", count)

    @rule(through_image=st.booleans())
    def move_coordinator(self, through_image: bool) -> None:
        self.rig.reload(through_image=through_image)

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        find_owners({name: client.owned for name, client in self.clients.items()})

    def teardown(self) -> None:
        for _ in range(10):  # members that are gone expire meanwhile
            self.rig.pass_ms(10_000)
            for client in self.clients.values():
                self.beat(client)
        group = self.rig.shard.log_state.consumer_groups.get(G)
        if not self.clients:
            assert group is None or group.state is ConsumerGroupState.EMPTY
            return
        assert group is not None
        assert group.state is ConsumerGroupState.STABLE
        assert {client.member_id: client.owned for client in self.clients.values()} == group.targets


TestConsumers = Consumers.TestCase
TestConsumers.settings = settings(max_examples=20, stateful_step_count=25)
