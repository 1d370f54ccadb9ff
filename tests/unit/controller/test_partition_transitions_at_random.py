"""Random histories of one partition: every eligible replica has all acknowledged records, or a loss is recorded.

Brokers write, copy, die, lose unsynced records, return, and go on while they are fenced. The controller decides by
`partition_transitions`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tiered.controller import partition_transitions
from tiered.controller.partition_transitions import PartitionContext
from tiered.controller.requests import InSync, IsrChange
from tiered.ids import NO_EPOCH, TopicId
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import End, PartitionImage

Record = tuple[int, int]
"""The leader epoch that wrote it, and a number of its own."""
TOPIC = TopicId("t")
NODES = 4


@dataclass(frozen=True)
class Seen:
    """The committed state as of one slot."""

    image: PartitionImage
    context: PartitionContext
    incarnations: dict[int, int]


@dataclass
class Broker:
    """A process and its log. `at` is the slot that it has applied; its leader state ends with the leadership."""

    incarnation: int = 1
    up: bool = True
    cut: bool = False
    log: list[Record] = field(default_factory=list)
    at: int = 0
    led: int = NO_EPOCH
    epoch_start: int = 0
    high_watermark: int = 0
    positions: dict[int, tuple[int, int]] = field(default_factory=dict)
    proposed: IsrChange | None = None


class History:
    """One partition, its replicas, and the records acknowledged so far: `truth`."""

    def __init__(self, copies: int, min_isr: int) -> None:
        self.nodes = tuple(range(1, NODES + 1))
        self.brokers = {node: Broker() for node in self.nodes}
        context = PartitionContext(frozenset(self.nodes), min_isr)
        self.slots = [
            Seen(
                partition_transitions.new_partition(self.nodes[:copies], context), context, dict.fromkeys(self.nodes, 1)
            )
        ]
        self.truth: list[Record] = []
        self.lost_in = NO_EPOCH
        self.asked: list[tuple[int, IsrChange]] = []
        self.written = 0
        self.handed_over: frozenset[int] = frozenset()
        """Brokers that handed over: these lead only until they have stopped."""
        for node in self.nodes:
            self._begin(node)

    @property
    def now(self) -> Seen:
        return self.slots[-1]

    # -- what brokers do ----------------------------------------------------------------------------------------------

    def leads(self, node: int) -> bool:
        seen, broker = self.slots[self.brokers[node].at], self.brokers[node]
        return broker.up and seen.image.leader == node and seen.incarnations[node] == broker.incarnation

    def write(self, node: int, _: int) -> None:
        if self.leads(node):
            self.written += 1
            self.brokers[node].log.append((self.brokers[node].led, self.written))
            self._move(node)

    def fetch(self, node: int, count: int) -> None:
        """One fetch of a follower: truncates what its leader lacks, reports its end, and copies some records."""
        me = self.brokers[node]
        mine = self.slots[me.at]
        if not me.up or mine.incarnations[node] != me.incarnation or mine.image.leader in (node, -1):
            return
        leader = self.brokers[mine.image.leader]
        theirs = self.slots[leader.at]
        if not self.leads(mine.image.leader) or leader.led != mine.image.leader_epoch:
            return
        if theirs.incarnations[node] != me.incarnation:
            return
        if node not in mine.image.replicas or node not in theirs.image.replicas:
            return
        same = common(me.log, leader.log)
        del me.log[same:]
        leader.positions[node] = (me.incarnation, same)
        self._move(mine.image.leader)
        me.log += leader.log[same : same + count]

    def request_isr(self, node: int, choice: int) -> None:
        """An ISR change: a replica that is close enough may join (R2), any may be removed."""
        leader = self.brokers[node]
        if not self.leads(node) or leader.proposed is not None:
            return
        seen = self.slots[leader.at]
        isr = [InSync(node, leader.incarnation)]
        for each in seen.image.replicas:
            incarnation, offset = leader.positions.get(each, (0, -1))
            known = seen.incarnations[each]
            close = incarnation == known and offset >= max(leader.high_watermark, leader.epoch_start)
            if each != node and choice >> each & 1 and (each in seen.image.isr or close):
                isr.append(InSync(each, known))
        leader.proposed = IsrChange(TOPIC, 0, leader.led, seen.image.partition_epoch, tuple(isr))
        self.asked.append((node, leader.proposed))

    def learn(self, node: int, steps: int) -> None:
        broker = self.brokers[node]
        if broker.up:
            broker.at = min(broker.at + 1 + steps, len(self.slots) - 1)
            self._begin(node)

    def die(self, node: int, lost: int) -> None:
        broker = self.brokers[node]
        if broker.up:
            broker.up = False
            if lost:
                broker.cut = True
                del broker.log[-lost:]

    def stop(self, node: int, _: int) -> None:
        self.die(node, 0)
        self.fence(node, 0)

    # -- what the controller does -------------------------------------------------------------------------------------

    def grant(self, choice: int, _: int) -> None:
        """An ISR change arrives, perhaps late; its sender learns of a refusal at once."""
        if self.asked:
            node, isr_change = self.asked.pop(choice % len(self.asked))
            numbers = {each: self.now.incarnations[each] for each in self.now.context.live}
            found = partition_transitions.alter_isr(self.now.image, node, isr_change, numbers, self.now.context)
            if isinstance(found, PartitionImage):
                self._decided(found, joined={each.node_id for each in isr_change.isr})
            elif self.brokers[node].proposed is isr_change:
                self.brokers[node].proposed = None

    def fence(self, node: int, choice: int) -> None:
        """One broker is fenced, or sometimes several by one decision."""
        others = [each for each in self.nodes if choice % 3 == 1 and (choice + each) % 2]
        nodes = {node, *others} & self.now.context.live
        if nodes:
            context = replace(self.now.context, live=self.now.context.live - nodes)
            self._decided(partition_transitions.remove_brokers(self.now.image, nodes, context), context)

    def unfence(self, node: int, _: int) -> None:
        broker = self.brokers[node]
        if broker.up and node not in self.now.context.live:
            broker.at = len(self.slots) - 1
            self._begin(node)
            context = replace(self.now.context, live=self.now.context.live | {node})
            self._decided(partition_transitions.reevaluate(self.now.image, context), context)

    def come_back(self, node: int, _: int) -> None:
        broker = self.brokers[node]
        if not broker.up:
            end = End(node, *self._reach(node)) if broker.cut else None
            fresh = Broker(broker.incarnation + 1, log=broker.log)
            self.brokers[node] = fresh
            context = replace(self.now.context, live=self.now.context.live | {node})
            incarnations = self.now.incarnations | {node: fresh.incarnation}
            found = partition_transitions.register_broker(self.now.image, node, end, context)
            self._decided(found, context, incarnations, reports=node if end is not None else None)
            fresh.at = len(self.slots) - 1
            self._begin(node)

    def adopt(self, giver: int, choice: int) -> None:
        """The log of a broker that is down moves to one without a replica, which takes its place (I36)."""
        old, others = self.now, [each for each in self.nodes if each not in self.now.image.replicas]
        if self.brokers[giver].up or giver in old.context.live or giver not in old.image.replicas or not others:
            return
        node, moved = others[choice % len(others)], self.brokers[giver]
        end = End(node, *self._reach(giver)) if moved.cut else None
        fresh = self.brokers[node] = Broker(self.brokers[node].incarnation + 1, log=moved.log)
        self.brokers[giver] = replace(moved, log=[])
        context = replace(old.context, live=old.context.live | {node})
        incarnations = old.incarnations | {node: fresh.incarnation}
        swapped = partition_transitions.adopt_replica(old.image, giver, node)
        found = partition_transitions.register_broker(swapped, node, end, context)
        assert len(found.replicas) == len(set(found.replicas)) == len(old.image.replicas) or old.image.is_reassigning
        self._decided(found, context, incarnations, reports=node if end is not None else None, adopted=(giver, node))
        fresh.at = len(self.slots) - 1
        self._begin(node)

    def tell(self, node: int, _: int) -> None:
        """A broker that has applied everything reports its log end if an election waits for it."""
        broker, now = self.brokers[node], self.now
        if (
            broker.up
            and broker.at == len(self.slots) - 1
            and node in partition_transitions.awaited_replicas(now.image, now.context.live)
        ):
            self._decided(partition_transitions.report_end(now.image, End(node, *self._reach(node)), now.context))

    def want(self, _: int, min_isr: int) -> None:
        context = replace(self.now.context, min_isr=max(1, min_isr))
        self._decided(partition_transitions.reevaluate(self.now.image, context), context)

    def hand_over(self, node: int, _: int) -> None:
        self.handed_over |= {node}
        self._decided(partition_transitions.hand_over(self.now.image, node, self.now.context))

    def report_disk(self, node: int, state: int) -> None:
        """The disk of a broker is full (0, 1), recovering (2) or usable."""
        full, recovering = self.now.context.full - {node}, self.now.context.recovering - {node}
        context = replace(
            self.now.context,
            full=full | {node} if state < 2 else full,
            recovering=recovering | {node} if state == 2 else recovering,
        )
        self._decided(partition_transitions.leave_full_disk(self.now.image, context), context)
        image = self.now.image
        if image.leader not in {NO_LEADER, *context.full} and context.full.intersection(image.isr):
            needed = max(1, min(context.min_isr, len(image.replicas)))
            assert len(image.isr) <= needed, "acks=all waits for a full disk that is not needed"

    def prefer(self, _: int, __: int) -> None:
        found = partition_transitions.elect_preferred(self.now.image, self.now.context)
        self._decided(found if isinstance(found, PartitionImage) else self.now.image)

    def force(self, _: int, __: int) -> None:
        found = partition_transitions.elect_unclean(self.now.image, self.now.context)
        self._decided(found if isinstance(found, PartitionImage) else self.now.image, forced=True)

    def reassign(self, choice: int, number: int) -> None:
        """Starts a reassignment to some brokers, from broker `number` on. Added brokers are live."""
        old, context = self.now.image, self.now.context
        order = (*self.nodes[number % NODES :], *self.nodes[: number % NODES])
        target = tuple(each for each in order if choice >> each & 1 and (each in context.live or each in old.replicas))
        if target and not old.is_reassigning:
            self._decided(partition_transitions.start_reassignment(old, target, context))

    def call_off(self, _: int, __: int) -> None:
        found = partition_transitions.cancel_reassignment(self.now.image, self.now.context)
        self._decided(found if isinstance(found, PartitionImage) else self.now.image)

    # -- what has to hold ---------------------------------------------------------------------------------------------

    def _decided(
        self,
        image: PartitionImage,
        context: PartitionContext | None = None,
        incarnations: dict[int, int] | None = None,
        reports: int | None = None,
        forced: bool = False,
        joined: Iterable[int] = (),
        adopted: tuple[int, int] = (0, 0),
    ) -> None:
        """Takes a decision of the controller. `joined` may lead: they are in sync by the same decision. The second of
        `adopted` has the place of the first."""
        old = self.now
        if adopted[0]:
            if image.loss == old.image.loss:
                assert set(image.isr) <= {*old.image.isr, adopted[1]}, "a member of the ISR is invented"
            old = replace(old, image=renamed(old.image, *adopted))
        gone = set(old.image.replicas) - set(image.replicas) - {adopted[0]}
        if gone:
            assert image.leader_epoch > old.image.leader_epoch or image.leader == -1
            assert gone <= set(old.image.adding) or set(image.replicas) <= set(image.isr), "a copy was given up early"
        if image is not old.image:
            assert image.leader_epoch >= old.image.leader_epoch
            image = replace(image, partition_epoch=old.image.partition_epoch + 1)
        self.slots.append(Seen(image, context or old.context, incarnations or old.incarnations))
        dead = image.leader != -1 and self.brokers[image.leader].cut  # nobody knows yet; it never acts under this epoch
        if image.leader != NO_LEADER and image.leader_epoch > old.image.leader_epoch and not dead:
            if not forced and image.leader not in {*old.image.isr, *old.image.elr, *joined} - {reports}:
                self._has_most(image.leader)
            kept = common(self.brokers[image.leader].log, self.truth)
            known = {*old.image.isr, *old.image.elr, *old.image.last_known}
            alone = known <= {image.leader} and (reports == image.leader or image.leader in old.image.last_known)
            if image.loss != old.image.loss:
                assert image.loss is not None and image.loss.leader_epoch == image.leader_epoch
                assert kept == len(self.truth) or image.loss.from_offset <= kept, "the loss begins earlier"
                assert not alone
                assert forced or {*old.image.isr, *old.image.elr} <= {reports}, "somebody who is eligible comes back"
                self._lost(image, kept)
            elif alone:  # it reports itself
                self._lost(image, kept)
            else:
                assert kept == len(self.truth), f"{image.leader} leads without {self.truth[kept:]}"
        self.check()

    def _has_most(self, leader: int) -> None:
        """A leader that may lack records has as much as every live replica: epoch first, then end."""
        for node in set(self.now.context.live).intersection(self.now.image.replicas):
            if self.brokers[node].up:
                assert self._reach(leader) >= self._reach(node), f"{node} lives and has more than {leader}"

    def _reach(self, node: int) -> tuple[int, int]:
        log = self.brokers[node].log
        return (log[-1][0], len(log)) if log else (NO_EPOCH, 0)

    def _lost(self, image: PartitionImage, kept: int) -> None:
        del self.truth[kept:]
        self.lost_in = image.leader_epoch

    def check(self) -> None:
        image, context = self.now.image, self.now.context
        partition_transitions.check_invariants(image, context)
        if context.live & {*image.isr, *image.elr}:
            assert image.leader != -1, "somebody could lead"
        if image.leader in context.full:
            unable = context.full | self.handed_over
            assert unable.issuperset(image.isr), "a full disk leads although a replica in sync has room"
        for node in (*image.isr, *image.elr):
            broker = self.brokers[node]
            assert broker.cut or common(broker.log, self.truth) == len(self.truth), f"{node} is eligible and lacks some"

    def _begin(self, node: int) -> None:
        """A broker applies the changes up to its slot."""
        broker, seen = self.brokers[node], self.slots[self.brokers[node].at]
        if node not in seen.image.replicas:
            broker.log.clear()
        if not self.leads(node):
            broker.positions, broker.proposed = {}, None
        elif broker.led != seen.image.leader_epoch:
            broker.led, broker.epoch_start = seen.image.leader_epoch, len(broker.log)
            broker.positions, broker.proposed = {}, None
        elif broker.proposed is not None and broker.proposed.partition_epoch != seen.image.partition_epoch:
            broker.proposed = None
        if self.leads(node):
            self._move(node)

    def _move(self, node: int) -> None:
        """R3: a leader acknowledges by the state that it has applied."""
        broker, seen = self.brokers[node], self.slots[self.brokers[node].at]
        if len(seen.image.isr) < min(seen.context.min_isr, len(seen.image.replicas)):
            return
        proposed = broker.proposed.isr if broker.proposed is not None else ()
        counted = {*seen.image.isr, *(each.node_id for each in proposed)}
        ends = [broker.positions.get(each, (0, 0))[1] if each != node else len(broker.log) for each in sorted(counted)]
        broker.high_watermark = max(broker.high_watermark, min(ends))
        acked = broker.log[: broker.high_watermark]
        if broker.led >= self.lost_in:
            assert common(acked, self.truth) == min(len(acked), len(self.truth)), "two records at one offset"
            self.truth += acked[len(self.truth) :]


def renamed(image: PartitionImage, one: int, other: int) -> PartitionImage:
    """Returns the partition with `other` instead of `one`."""
    fields = ("replicas", "isr", "elr", "last_known", "adding", "removing")
    lists = {name: tuple(other if each == one else each for each in getattr(image, name)) for name in fields}
    return replace(image, **lists)  # type: ignore[arg-type]


def common(a: list[Record], b: list[Record]) -> int:
    """Returns the length of the common prefix of two logs."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


USUAL = "write write fetch fetch fetch fetch request_isr request_isr grant grant learn learn learn learn unfence"
USUAL += " come_back come_back tell"
RARE = "die fence fence stop hand_over report_disk prefer want force reassign call_off adopt"
VERBS: dict[str, Callable[[History, int, int], None]] = {
    name: getattr(History, name) for name in f"{USUAL} {RARE}".split()
}
Step = tuple[str, int, int]
"""Each verb, the broker, and a number of small or large meaning."""


def play(copies: int, min_isr: int, steps: Iterable[Step]) -> History:
    history = History(copies, min_isr)
    for verb, node, number in steps:
        if verb == "reassign":
            history.reassign(number, node)
        else:
            among = history.now.image.replicas if number % 8 else history.nodes
            VERBS[verb](history, among[(node - 1) % len(among)], number if verb == "request_isr" else number % 5)
        history.check()
    return history


STEPS = st.lists(
    st.tuples(st.sampled_from(f"{USUAL} {RARE}".split()), st.integers(1, 4), st.integers(0, 31)), min_size=20
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), STEPS)
def test_eligible_replica_has_all_acknowledged_records(copies: int, min_isr: int, steps: list[Step]) -> None:
    play(copies, min_isr, steps)


def drawn(seed: int) -> tuple[int, int, list[Step]]:
    """Draws longer histories than Hypothesis does, each with some kinds of rare events only."""
    chance = Random(seed)
    verbs = USUAL.split() + [verb for verb in RARE.split() if chance.random() < 0.5]
    verbs += ["reassign", "call_off", "reassign"][: chance.randint(0, 3) if "reassign" in verbs else 0]
    copies, min_isr = chance.choice([1, 2, 2, 3, 3, 3, 4]), chance.choice([1, 1, 2, 2, 2, 3])
    count = chance.randint(30, 250)
    return copies, min_isr, [(chance.choice(verbs), chance.randint(1, 4), chance.randint(0, 31)) for _ in range(count)]


def test_random_histories_keep_the_rules_and_reach_every_case() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1_500):
        history = play(*drawn(seed))
        images = [slot.image for slot in history.slots]
        seen["acknowledged"] += len(history.truth) > 2
        seen["failed over"] += history.now.image.leader_epoch > 1
        seen["eligible outside of the ISR"] += any(image.elr for image in images)
        seen["waits for one"] += any(image.last_known for image in images)
        seen["waits for several"] += any(len(image.last_known) > 1 for image in images)
        seen["lost"] += history.lost_in >= 0
        seen["led by a full disk"] += any(slot.image.leader in slot.context.full for slot in history.slots)
        seen["left a full disk"] += any(
            old.image.leader in new.context.full and new.image.leader not in (NO_LEADER, old.image.leader)
            for old, new in pairwise(history.slots)
        )
        seen["full follower left"] += any(
            (old.image.leader, old.image.leader_epoch) == (new.image.leader, new.image.leader_epoch)
            and new.context.full.difference(old.context.full).intersection(old.image.isr).difference(new.image.isr)
            for old, new in pairwise(history.slots)
        )
        seen["led by one that was not in sync"] += any(
            old.last_known and new.leader not in (NO_LEADER, *old.last_known, *old.elr) for old, new in pairwise(images)
        )
        seen["moved"] += any(
            old.is_reassigning and not new.is_reassigning and new.replicas != old.replicas
            for old, new in pairwise(images)
        )
        seen["adopted"] += any(
            len(new.replicas) == len(old.replicas)
            and not new.is_reassigning
            and not old.is_reassigning
            and set(new.replicas) != set(old.replicas)
            for old, new in pairwise(images)
        )
        seen["its leader left"] += any(old.leader not in (-1, *new.replicas) for old, new in pairwise(images))
        seen["failed over on the way"] += any(
            old.is_reassigning and new.is_reassigning and new.leader_epoch > old.leader_epoch
            for old, new in pairwise(images)
        )
    assert all(seen[what] >= 3 for what in seen), seen
