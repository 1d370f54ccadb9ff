"""One broker and its metadata log, and two more brokers that are only their requests to the controller.

The requests come as those of real brokers may: late, twice, from an earlier process, or from a start that proves
nothing. No request changes what it has no right to, and each election goes by R1 and R4.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, run
from tiered.controller.requests import (
    AlterBrokerConfigs,
    AlterPartitions,
    AlterTopicConfigs,
    AwaitedEnd,
    CreateTopic,
    ElectLeaders,
    FenceBroker,
    HandOver,
    InSync,
    IsrChange,
    Move,
    Reassign,
    RegisterBroker,
    ReplicaEnd,
    ReportEnds,
    ReportLoss,
    StopBroker,
    UnfenceBroker,
)
from tiered.errors import Code
from tiered.ids import NO_EPOCH, TopicId, incarnation_number
from tiered.metadata.changes import ALL_BROKERS, NO_LEADER
from tiered.metadata.parts.topics import PartitionImage

ONE, TWO, THREE = 1, 2, 3


class Members:
    """The brokers 2 and 3, as the controller on the only real broker knows them; and the topic `t`."""

    def __init__(self, rig: SimBrokerRig) -> None:
        self.rig = rig
        self.lives = {TWO: 0, THREE: 0}

    @property
    def now(self) -> PartitionImage:
        """The partition as the metadata log has it."""
        return self.rig.broker.image.topics["t"].partitions[0]

    @property
    def topic_id(self) -> TopicId:
        return self.rig.broker.image.topics["t"].topic_id

    def incarnation(self, node: int, life: int | None = None) -> str:
        """Returns the name of a process of a broker: of its last one, or of an earlier one."""
        if node == ONE:
            return self.rig.broker.image.brokers[ONE].incarnation
        return "ABCDEFGHIJ"[self.lives[node] if life is None else life] * 21 + "A"

    async def register(
        self, node: int, *, whole: bool = True, end: tuple[int, int] | None = None, proved: bool = False,
        directory: str = "d",
    ) -> None:  # fmt: skip
        """Starts a process of a broker. Without `whole` and `proved` it names the `end` of its log, if it can read
        it."""
        self.lives[node] += 1
        named = "t" in self.rig.broker.image.topics
        ends = (ReplicaEnd(self.topic_id, 0, *end),) if end is not None else ()
        await self.rig.broker.submit(
            RegisterBroker(
                node, self.incarnation(node), directory, f"host{node}:1", "", whole, {"PLAINTEXT": f"host{node}:9092"},
                ends, ((self.topic_id, 0),) if proved and named else (),
            )
        )  # fmt: skip

    async def create(self, *replicas: int, **configs: str) -> None:
        dotted = {name.replace("_", "."): value for name, value in configs.items()}
        await self.rig.broker.submit(CreateTopic("t", assignments=[list(replicas)], configs=dotted))

    async def fence(self, node: int, life: int | None = None) -> None:
        await self.rig.broker.submit(FenceBroker(node, self.incarnation(node, life)))

    async def unfence(self, node: int, life: int | None = None) -> None:
        await self.rig.broker.submit(UnfenceBroker(node, self.incarnation(node, life)))

    def isr_change(
        self, *members: int, earlier: int = -1, leader_epoch: int | None = None, partition_epoch: int | None = None
    ) -> IsrChange:
        """Returns an ISR change; `earlier` is the broker that it names under an earlier incarnation."""
        isr = tuple(
            InSync(node, incarnation_number(self.incarnation(node, self.lives[node] - 1 if node == earlier else None)))
            for node in members
        )
        return IsrChange(
            self.topic_id, 0, self.now.leader_epoch if leader_epoch is None else leader_epoch,
            self.now.partition_epoch if partition_epoch is None else partition_epoch, isr,
        )  # fmt: skip

    async def alter(self, leader: int, *changes: IsrChange) -> list[Code]:
        """Sends ISR changes as the leader does."""
        return list(await self.rig.broker.submit(AlterPartitions(leader, self.incarnation(leader), changes)))

    async def shrink(self, leader: int, *members: int) -> None:
        assert await self.alter(leader, self.isr_change(*members)) == [Code.NONE]

    async def say_end(self, node: int, epoch: int, offset: int) -> None:
        """Reports a log end that an election waits for."""
        ends = (AwaitedEnd(self.topic_id, 0, self.now.leader_epoch, epoch, offset),)
        await self.rig.broker.submit(ReportEnds(node, self.incarnation(node), ends))


def run_members(scenario: Callable[[Members], Awaitable[None]]) -> None:
    async def run_all(rig: SimBrokerRig) -> None:
        await rig.start(QUICK)
        members = Members(rig)
        for node in (TWO, THREE):
            await members.register(node)
        await scenario(members)
        await rig.stop()

    run(run_all)


@run_by(run_members)
async def test_late_isr_changes_change_nothing(of: Members) -> None:
    await of.create(TWO, THREE)
    refused = {
        "no leader in it": of.isr_change(THREE),
        "a broker without a replica": of.isr_change(ONE, TWO, THREE),
        "an older ISR": of.isr_change(TWO, partition_epoch=of.now.partition_epoch - 1),
    }
    for what, change in refused.items():
        before = of.now
        assert await of.alter(TWO, change) != [Code.NONE], what
        assert of.now == before, what
    assert await of.alter(TWO, of.isr_change(TWO), of.isr_change(TWO, THREE)) == [
        Code.NONE,
        Code.INVALID_UPDATE_VERSION,
    ]
    assert of.now.isr == (TWO,)
    await of.register(THREE)
    before = of.now
    assert await of.alter(TWO, of.isr_change(TWO, THREE, earlier=THREE)) == [Code.INELIGIBLE_REPLICA]
    assert of.now == before
    assert await of.alter(TWO, of.isr_change(TWO)) == [Code.NONE]
    assert of.now.partition_epoch > before.partition_epoch, "no earlier one can be granted any more"
    await of.shrink(TWO, TWO, THREE)
    old = of.now
    await of.rig.broker.submit(HandOver(TWO, of.incarnation(TWO)))
    assert of.now.leader == THREE and of.now.leader_epoch == old.leader_epoch + 1
    assert await of.alter(TWO, of.isr_change(TWO, leader_epoch=old.leader_epoch)) != [Code.NONE], "a deposed leader"
    await of.register(TWO)  # the last process was about to stop
    await of.shrink(THREE, TWO, THREE)
    await of.rig.broker.submit(HandOver(THREE, of.incarnation(THREE)))
    assert of.now.leader == TWO
    late = of.isr_change(TWO, leader_epoch=old.leader_epoch)
    assert await of.alter(TWO, late) == [Code.FENCED_LEADER_EPOCH], "it leads again, under a later epoch"


@run_by(run_members)
async def test_requests_of_an_earlier_process_change_nothing(of: Members) -> None:
    await of.create(TWO, THREE)
    await of.register(THREE)
    await of.shrink(TWO, TWO, THREE)
    before = of.now
    await of.fence(THREE, life=1)
    assert of.now == before and of.rig.broker.image.brokers[THREE].live
    with refuses(Code.STALE_BROKER_EPOCH):
        await of.rig.broker.submit(StopBroker(THREE, of.incarnation(THREE, 1)))
    await of.fence(THREE)
    assert of.now.isr == (TWO,) and not of.rig.broker.image.brokers[THREE].live
    await of.unfence(THREE, life=1)
    assert not of.rig.broker.image.brokers[THREE].live
    await of.unfence(THREE)
    assert of.rig.broker.image.brokers[THREE].live and of.now.isr == (TWO,), "it joins as a follower"


@run_by(run_members)
async def test_fenced_broker_leads_nothing_by_the_word_of_its_earlier_process(of: Members) -> None:
    await of.create(TWO, THREE)
    await of.register(THREE)
    await of.shrink(TWO, TWO, THREE)
    await of.fence(TWO)
    await of.fence(THREE)
    assert of.now.leader == NO_LEADER
    await of.unfence(THREE, life=1)
    assert of.now.leader == NO_LEADER
    await of.unfence(THREE)
    assert of.now.leader == THREE


@run_by(run_members)
async def test_replicas_that_left_a_small_isr_lead_next(of: Members) -> None:
    """With `min.insync.replicas` 2 of 3 nothing was acknowledged since, so each of them has everything (KIP-966)."""
    await of.create(TWO, THREE, ONE, min_insync_replicas="2")
    await of.shrink(TWO, TWO, THREE)
    assert not of.now.elr, "enough are in sync"
    await of.shrink(TWO, TWO)
    assert of.now.elr == (THREE,)
    await of.fence(TWO)
    assert (of.now.leader, {*of.now.elr}) == (THREE, {TWO}), "it stays eligible, and who is eligible leads"
    await of.fence(THREE)
    assert of.now.leader == NO_LEADER and {*of.now.elr} == {TWO, THREE}
    await of.unfence(TWO)
    assert of.now.leader == TWO
    await of.shrink(TWO, TWO, ONE)
    assert not of.now.elr


@run_by(run_members)
async def test_preferred_leader_leads_only_in_sync(of: Members) -> None:
    await of.create(TWO, THREE)
    await of.fence(TWO)
    await of.unfence(TWO)
    assert of.now.leader == THREE
    where = ((of.topic_id, 0),)
    codes = await of.rig.broker.submit(ElectLeaders(True, where))
    assert codes == ((of.topic_id, 0, Code.PREFERRED_LEADER_NOT_AVAILABLE),) and of.now.leader == THREE
    await of.shrink(THREE, TWO, THREE)
    await of.fence(TWO)
    await of.rig.broker.submit(ElectLeaders(True, where))
    assert of.now.leader == THREE, "it is fenced"


@run_by(run_members)
async def test_broker_that_stops_stays_in_a_small_isr(of: Members) -> None:
    await of.create(TWO, THREE, min_insync_replicas="2")
    await of.rig.broker.submit(HandOver(TWO, of.incarnation(TWO)))
    assert of.now.leader == THREE and {*of.now.isr} == {TWO, THREE}
    await of.rig.broker.submit(StopBroker(TWO, of.incarnation(TWO)))
    assert (of.now.isr, of.now.elr) == ((THREE,), (TWO,))


@pytest.mark.parametrize("proof", ["whole", "proved", "directory unknown", "unproved", "rotten"])
@run_by(run_members)
async def test_start_is_eligible_only_with_a_proof(of: Members, *, proof: str) -> None:
    """R1: the broker was in sync and is back. While another one that was in sync is away, nobody else leads."""
    await of.create(TWO, THREE, min_insync_replicas="2")
    await of.fence(TWO)
    await of.fence(THREE)
    assert of.now.leader == NO_LEADER
    if proof == "whole":
        await of.register(THREE)
    elif proof == "rotten":
        await of.register(THREE, end=(0, 5))
    else:
        await of.register(
            THREE, whole=False, proved=proof != "unproved", directory="" if proof == "directory unknown" else "d"
        )
    if proof in ("whole", "proved"):
        assert of.now.leader == THREE
        return
    assert (of.now.leader, of.now.elr, of.now.last_known) == (NO_LEADER, (TWO,), (THREE,))
    await of.unfence(TWO)
    assert (of.now.leader, of.now.loss) == (TWO, None)


@run_by(run_members)
async def test_proof_of_one_log_is_none_of_another(of: Members) -> None:
    await of.create(TWO, THREE, min_insync_replicas="2")
    both = {"min.insync.replicas": "2"}
    await of.rig.broker.submit(CreateTopic("u", assignments=[[TWO, THREE]], configs=both))
    await of.fence(TWO)
    await of.fence(THREE)
    await of.register(THREE, whole=False, proved=True)
    assert of.rig.broker.image.topics["u"].partitions[0].leader == NO_LEADER
    assert of.now.leader == THREE


async def lose_both(of: Members, two: tuple[int, int], three: tuple[int, int]) -> None:
    """Both members of the ISR start without a proof, and name the ends of their logs."""
    await of.fence(TWO)
    await of.fence(THREE)
    await of.register(TWO, whole=False, end=two)
    assert of.now.leader == NO_LEADER and of.now.last_known == (TWO,), "the other one may have more"
    await of.register(THREE, whole=False, end=three)


@pytest.mark.parametrize(
    ("two", "three", "leader", "lost"),
    [
        ((0, 9), (0, 5), TWO, 9),
        ((0, 5), (0, 9), THREE, 9),
        ((0, 9), (1, 5), THREE, 5),
        ((1, 7), (0, 9), TWO, 7),
        ((0, 9), (NO_EPOCH, 12), THREE, 12),
    ],
    ids=["longer", "longer-last", "later-epoch", "later-epoch-first", "emptied"],
)
@run_by(run_members)
async def test_most_complete_log_of_the_last_members_leads(
    of: Members, *, two: tuple[int, int], three: tuple[int, int], leader: int, lost: int
) -> None:
    await of.create(TWO, THREE, min_insync_replicas="2")
    await lose_both(of, two, three)
    assert of.now.leader == leader
    assert of.now.loss is not None and of.now.loss.from_offset == lost


@run_by(run_members)
async def test_election_waits_for_all_of_the_last_members(of: Members) -> None:
    await of.create(TWO, THREE, min_insync_replicas="2")
    await of.fence(TWO)
    await of.fence(THREE)
    await of.register(TWO, whole=False, end=(0, 9))
    await of.fence(TWO)
    await of.register(THREE, whole=False, end=(0, 5))
    assert of.now.leader == NO_LEADER, "the one that is away may have more"
    await of.register(TWO, whole=False, end=(0, 9))
    assert of.now.leader == TWO


@run_by(run_members)
async def test_live_replicas_say_their_ends_before_one_leads(of: Members) -> None:
    await of.create(TWO, THREE, ONE, min_insync_replicas="1")
    await of.shrink(TWO, TWO)
    await of.fence(TWO)
    await of.fence(THREE)
    await of.register(TWO, whole=False, end=(0, 3))
    assert of.now.leader == NO_LEADER, "the real broker has not said its end"
    await of.rig.wait_until(lambda: of.now.leader != NO_LEADER, 30)
    assert of.now.leader == TWO


@run_by(run_members)
async def test_report_of_a_loss_reaches_as_far_back_as_any(of: Members) -> None:
    await of.create(TWO, THREE)

    def lost() -> int:
        assert of.now.loss is not None
        return of.now.loss.from_offset

    async def report(epoch: int, offset: int, stored: int = 0) -> None:
        await of.rig.broker.submit(ReportLoss(of.topic_id, 0, epoch, offset, stored))

    await report(0, 9)
    assert lost() == 9
    await report(0, 12)
    assert lost() == 9, "a higher one hides no lower one"
    await report(0, 4)
    assert lost() == 4
    await report(0, 4, stored=6)
    assert lost() == 6, "its own leader found these in the bucket"
    await of.fence(TWO)
    epoch = of.now.leader_epoch
    await report(epoch, 8)
    assert (lost(), of.now.loss.leader_epoch if of.now.loss else -1) == (8, epoch)
    await report(epoch - 1, 2)
    assert (lost(), of.now.loss.leader_epoch if of.now.loss else -1) == (2, epoch), "an earlier leader's report"


@run_by(run_members)
async def test_move_ends_once_all_that_stay_are_in_sync(of: Members) -> None:
    await of.create(TWO, ONE)
    await of.shrink(TWO, TWO)
    epoch = of.now.leader_epoch
    await of.rig.broker.submit(Reassign((Move(of.topic_id, 0, (THREE, ONE)),)))
    assert of.now.adding == (THREE,) and of.now.removing == (TWO,)
    await of.shrink(TWO, TWO, THREE)
    assert of.now.is_reassigning, "the other one that stays is not in sync"
    await of.shrink(TWO, TWO, THREE, ONE)
    assert (of.now.replicas, of.now.is_reassigning) == ((THREE, ONE), False)
    assert of.now.leader_epoch == epoch + 1


@run_by(run_members)
async def test_move_without_another_leader_raises_the_epoch(of: Members) -> None:
    """Nothing that the leader knows of the removed replica counts if that broker is added again."""
    await of.create(TWO, THREE)
    epoch = of.now.leader_epoch
    await of.rig.broker.submit(Reassign((Move(of.topic_id, 0, (TWO,)),)))
    assert (of.now.replicas, of.now.leader, of.now.leader_epoch) == ((TWO,), TWO, epoch + 1)


@run_by(run_members)
async def test_move_is_called_off_only_if_others_have_everything(of: Members) -> None:
    await of.create(TWO, ONE)
    await of.shrink(TWO, TWO)
    await of.rig.broker.submit(Reassign((Move(of.topic_id, 0, (THREE, ONE)),)))
    await of.shrink(TWO, TWO, THREE)
    await of.fence(TWO)
    assert of.now.leader == THREE
    codes = await of.rig.broker.submit(Reassign((Move(of.topic_id, 0, None),)))
    assert codes != (None,) and THREE in of.now.replicas


@run_by(run_members)
async def test_replica_that_was_just_added_leads_only_as_last_known_member(of: Members) -> None:
    """An operator ends the wait: of the live ones, the broker that was added holds nothing yet."""
    await of.create(TWO, ONE)
    await of.shrink(TWO, TWO)
    await of.rig.broker.submit(Reassign((Move(of.topic_id, 0, (THREE, ONE)),)))
    await of.fence(TWO)
    assert of.now.leader == NO_LEADER
    await of.rig.broker.submit(ElectLeaders(False, ((of.topic_id, 0),)))
    assert of.now.leader == ONE and of.now.loss is not None
    assert of.now.is_reassigning, "a loss ends no move"


@run_by(run_members)
async def test_loss_ends_no_move_in_its_own_step(of: Members) -> None:
    await of.create(TWO, ONE)
    await of.shrink(TWO, TWO)
    await of.rig.broker.submit(Reassign((Move(of.topic_id, 0, (ONE,)),)))
    await of.fence(TWO)
    await of.rig.broker.submit(ElectLeaders(False, ((of.topic_id, 0),)))
    assert of.now.leader == ONE and of.now.loss is not None
    assert of.now.is_reassigning and TWO in of.now.replicas, "its log may have what is lost"


@run_by(run_members)
async def test_changed_min_isr_changes_who_is_eligible(of: Members) -> None:
    await of.rig.broker.submit(AlterBrokerConfigs(ALL_BROKERS, {"min.insync.replicas": "2"}))
    await of.create(TWO, THREE)
    await of.shrink(TWO, TWO)
    assert of.now.elr == (THREE,)
    await of.rig.broker.submit(AlterTopicConfigs("t", {"min.insync.replicas": "1"}))
    assert not of.now.elr
