"""Members of both protocols in one group, in any order, with moves of the coordinator and topics that grow (I17).

The rig checks after each step that the invariants hold, and that a replay gives the same state. No partition has two
owners at any time. At the end the assignment is complete and balanced, and the group has the protocol of its members.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.groups.consumer.classic_client import SESSION_MS, ClassicClient
from tests.unit.groups.consumer.rig import T
from tests.unit.groups.consumer.test_heartbeat_at_random import REJOIN, Client
from tests.unit.groups.rig import G, Rig
from tiered.errors import Code
from tiered.groups.classic import ClassicGroupState
from tiered.groups.consumer.epochs import ConsumerGroupState
from tiered.groups.limits import GroupSettings

NAMES = st.sampled_from(["a", "b", "c", "d"])
BEAT_MS = 2_000
SETTLE_ROUNDS = 14
"""Heartbeats until all is settled: sessions that end, and some steps of each member."""


class MixedClients(RuleBasedStateMachine):
    """Clients of one group. All classic ones of an example are eager, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(GroupSettings(consumer_session_timeout_ms=SESSION_MS, initial_rebalance_delay_ms=0))
        self.rig.set_topic("t", 4, T)
        self.clients: dict[str, Client | ClassicClient] = {}
        self.runs = 0
        self.is_eager = True

    @initialize(is_eager=st.booleans())
    def choose(self, is_eager: bool) -> None:
        self.is_eager = is_eager

    def poll(self, client: Client | ClassicClient) -> None:
        if isinstance(client, ClassicClient):
            client.poll()
            return
        is_full = client.epoch == 0
        reply = self.rig.consume(
            client.member_id, client.epoch, owned=client.owned, topics=client.topics if is_full else None,
            rebalance_ms=60_000 if is_full else -1,
        )  # fmt: skip
        assert reply.code in (Code.NONE, Code.GROUP_ID_NOT_FOUND, *REJOIN), reply
        client.take(reply)

    def owned_by(self, client: Client | ClassicClient) -> frozenset[tuple[str, int]]:
        if isinstance(client, ClassicClient):
            return client.owned
        return frozenset(("t", each) for numbers in client.owned.values() for each in numbers)

    def pass_beats(self, rounds: int) -> None:
        """Passes time, in which each client sends its heartbeats."""
        for _ in range(rounds):
            self.rig.pass_ms(BEAT_MS)
            for client in self.clients.values():
                self.poll(client)
            self.no_partition_has_two_owners()

    @rule(name=NAMES, is_classic=st.booleans())
    def start(self, name: str, is_classic: bool) -> None:
        if name not in self.clients:
            self.runs += 1
            made = ClassicClient(self.rig, is_eager=self.is_eager) if is_classic else Client(f"{name}{self.runs}", None)
            self.clients[name] = made
        self.poll(self.clients[name])

    @rule(name=NAMES)
    def poll_one(self, name: str) -> None:
        if name in self.clients:
            self.poll(self.clients[name])

    @rule(name=NAMES)
    def stop(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if isinstance(client, ClassicClient):
            client.leave()
        elif client is not None:
            self.rig.consume(client.member_id, -1)

    @rule(name=NAMES)
    def crash(self, name: str) -> None:
        if self.clients.pop(name, None) is not None:
            self.pass_beats(4)

    @rule(rounds=st.integers(1, 4))
    def wait(self, rounds: int) -> None:
        self.pass_beats(rounds)

    @rule(count=st.integers(1, 6))
    def change_partitions(self, count: int) -> None:
        """A topic grows. Classic consumers look at the metadata themselves: the leader of a classic group joins."""
        self.rig.set_topic("t", max(count, self.rig.topics["t"].partition_count))
        for client in self.clients.values():
            if isinstance(client, ClassicClient):
                client.needs_join = client.needs_join or G in self.rig.shard.state.groups

    @rule(through_image=st.booleans())
    def move_coordinator(self, through_image: bool) -> None:
        self.rig.reload(through_image=through_image)
        for client in self.clients.values():
            if isinstance(client, ClassicClient):
                client.disconnect()

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        all_owned = [each for client in self.clients.values() for each in self.owned_by(client)]
        assert len(all_owned) == len(set(all_owned)), {
            name: sorted(self.owned_by(client)) for name, client in self.clients.items()
        }

    def teardown(self) -> None:
        self.pass_beats(SETTLE_ROUNDS)
        consumer_group = self.rig.shard.log_state.consumer_groups.get(G)
        classic_group = self.rig.shard.state.groups.get(G)
        if not self.clients:
            assert consumer_group is None or consumer_group.state is ConsumerGroupState.EMPTY
            assert classic_group is None or classic_group.state is ClassicGroupState.EMPTY
            return
        counts = [len(self.owned_by(client)) for client in self.clients.values()]
        partition_count = self.rig.topics["t"].partition_count
        assert sum(counts) == partition_count, "some partitions have no owner"
        assert max(counts) - min(counts) <= 1, counts
        if all(isinstance(client, ClassicClient) for client in self.clients.values()):
            assert classic_group is not None and classic_group.state is ClassicGroupState.STABLE
            assert consumer_group is None
        else:
            assert consumer_group is not None and consumer_group.state is ConsumerGroupState.STABLE
            assert classic_group is None


TestMixedClients = MixedClients.TestCase
TestMixedClients.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
