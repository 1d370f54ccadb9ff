"""Bugs planted on purpose: each breaks one rule by putting another function in the place of a production one, in this
process and for a while. A simulator that does not find them proves nothing.

`seeds` is within how many seeds a search must find it (`make sim-plants`; 0 where a few hundred do not show it, and its
story alone does), and `of` what makes the drawn options fit to show it: the rest stays as it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, cast

from tests.sim.cluster.options import Options, TopicShape
from tiered.cold import collector
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.uploader import Uploader
from tiered.errors import Code
from tiered.following import Following
from tiered.hot import retention
from tiered.hot.disk_log import DiskLog
from tiered.hot.producers import ProducerStates
from tiered.ids import PartitionId
from tiered.logs import Logs
from tiered.metadata import in_sync, metadata_log
from tiered.metadata.election import Candidacy
from tiered.metadata.groups import joining
from tiered.metadata.groups import offsets as commits
from tiered.metadata.load import read_from
from tiered.metadata.metadata_log import MetadataLog
from tiered.peers import Diverging, FetchFrom
from tiered.replication import leading, offsets, replica
from tiered.replication.diverging import Led
from tiered.replication.partition import Keep, Partition
from tiered.replication.readable import Readable
from tiered.tiering import Tiering

Owner = type[Any] | ModuleType
Make = Callable[[Any], Any]
LONG_MAX = 2**63 - 1
LATE_MS = 20_000


@dataclass(frozen=True)
class Plant:
    """One bug. `make` turns each original function into the one that has it."""

    name: str
    what: str
    where: tuple[tuple[Owner, str, Make], ...]
    of: Callable[[Options], Options] = lambda drawn: drawn
    seeds: int = 200

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is there inside."""
        with ExitStack() as stack:
            for owner, name, make in self.where:
                original = owner.__dict__[name]
                setattr(owner, name, make(original))
                stack.callback(setattr, owner, name, original)
            yield


# -- replication ------------------------------------------------------------------------------------------------------


def _whoever_lives(original: Any) -> Any:
    def last_resort(replicas: Any, elr: Any, *others: Any) -> Any:
        return next((node for node in replicas if node in others[-1].live), None)

    return last_resort


def _whoever_returns_first(original: Any) -> Any:
    def last_resort(replicas: Any, elr: Any, *others: Any) -> Any:
        return next((node for node in replicas if node in others[-1].live), None) if not elr else None

    return last_resort


def _keeps_its_place(original: Any) -> Any:
    def returned(old: Any, node: int, end: Any, terms: Any) -> Any:
        return old if node in old.isr or node in old.elr else original(old, node, end, terms)

    return returned


def _joins_at_a_stale_high_watermark(original: Any) -> Any:
    def may_join(self: Partition, broker: int, now_ns: int, lag_ns: int) -> bool:
        follower = self._followers.get(broker)
        return follower is not None and broker not in self._counted and follower.offset >= self.high_watermark

    return may_join


def _moves_below_min_isr(original: Any) -> Any:
    def move(self: Partition, min_isr: int) -> bool:
        return bool(original(self, 1))

    return move


def _compares_no_epochs(original: Any) -> Any:
    def judge(asked: FetchFrom, led: Led) -> Code | Diverging:
        found = original(asked, led)
        if not isinstance(found, Diverging):
            return cast("Code", found)
        return Code.NONE if asked.offset <= led.end else Diverging(led.epochs.latest, led.end)

    return judge


# -- metadata ---------------------------------------------------------------------------------------------------------


def _never_looks_at_the_boundary(original: Any) -> Any:
    async def check_boundary(self: MetadataLog, slot: int) -> None:
        return None

    return check_boundary


def _obeys_whatever_slot_is_there(original: Any) -> Any:
    async def catch_up(self: Following) -> None:
        committed = self._cluster.committed
        entries, _ = await read_from(self._store, committed.image.slot + 1)
        if not entries:
            return cast("None", await original(self))
        committed.read(entries)

    return catch_up


def _stands_with_the_same_epoch(original: Any) -> Any:
    def stand(highest_epoch: int, next_slot: int) -> Candidacy:
        return Candidacy(max(1, highest_epoch), next_slot)

    return stand


def _takes_its_own_lost_reply_for_a_failure(original: Any) -> Any:
    async def write(self: MetadataLog, changes: Any) -> Any:
        first, epoch = self.next_slot, self.epoch
        retries = self._retries.value()
        other = await original(self, changes)
        if other is None and self.next_slot == first + 1 and self.epoch == epoch and self._retries.value() > retries:
            return await original(self, changes)
        return other

    return write


def _writes_on_when_it_lost(original: Any) -> Any:
    async def append(self: MetadataLog, changes: Any) -> int:
        while True:
            other = await self._write(tuple(changes))
            if other is None:
                return self.next_slot - 1
            self.next_slot = other.slot + 1

    return append


# -- tiering ----------------------------------------------------------------------------------------------------------


def _names_it_first(original: Any) -> Any:
    async def copy(self: Uploader, manifest: Any, epoch: int, entry: Any, log_part: Any, tail: bytes) -> None:
        await self._name(manifest, epoch, [entry])
        await self._put(entry.key, log_part, tail, entry.object_bytes)

    return copy


def _drops_what_is_not_cold(original: Any) -> Any:
    def local_start(closed: Any, config: Any, now_ms: int, *, cold_end: int) -> Any:
        return original(closed, config, now_ms, cold_end=LONG_MAX)

    return local_start


def _keeps_the_open_segment_alone(original: Any) -> Any:
    def plan(closed: Any, active: Any, config: Any, now_ms: int, **ends: Any) -> retention.Plan:
        found: retention.Plan = original(closed, active, config, now_ms, **ends)
        if config.retention_bytes < 0 and config.retention_ms < 0:
            return found
        below = [each.next_offset for each in closed if each.next_offset <= ends["deletable_below"]]
        start = max([found.log_start, *below])
        return replace(found, log_start=start, drop_below=max(start, found.drop_below))

    return plan


def _sweeps_what_is_in_the_making(original: Any) -> Any:
    def garbage(listed: Any, alive: Any, busy: Any, epoch: int) -> Any:
        return [each for each in listed if each.key not in alive and not each.key.endswith("/manifest")]

    return garbage


def _sweeps_what_is_named(original: Any) -> Any:
    def garbage(listed: Any, alive: Any, busy: Any, epoch: int) -> Any:
        return [each for each in listed if not each.key.endswith("/manifest")]

    return garbage


def _changes_it_under_any_epoch(original: Any) -> Any:
    async def change(self: ManifestStore, pid: PartitionId, topic: str, epoch: int, fn: Any) -> Any:
        known = await self.load(pid)
        return await original(self, pid, topic, max(epoch, known.leader_epoch) if known else epoch, fn)

    return change


def _trusts_its_own_log(original: Any) -> Any:
    return lambda *args: Keep()


# -- producers and readers --------------------------------------------------------------------------------------------


def _forgets_producers_at_a_start(original: Any) -> Any:
    async def open(cls: type[DiskLog], *args: Any, **options: Any) -> DiskLog:
        log: DiskLog = await original.__func__(cls, *args, **options)
        log._tail.producers = ProducerStates(log.end_offset)
        return log

    return classmethod(open)


def _forgets_producers_while_it_follows(original: Any) -> Any:
    def append_as_follower(self: DiskLog, data: Any, *, now_ms: int) -> None:
        original(self, data, now_ms=now_ms)
        self._tail.producers = ProducerStates(self.end_offset)

    return append_as_follower


def _serves_all_it_has(original: Any) -> Any:
    def ends(self: Readable) -> tuple[int, int, int]:
        committed, stable, start = original(self)
        end = self.log.end_offset
        return max(committed, end), max(stable, end), start

    return ends


def _takes_the_end_of_the_log(original: Any) -> Any:
    async def end_of_cold_epoch(replica: Any, epoch: int) -> tuple[int, int]:
        return epoch, replica.log.end_offset

    return end_of_cold_epoch


def _commits_for_anybody(original: Any) -> Any:
    def refusal(group: Any, request: Any) -> Any:
        return None if group is not None else original(group, request)

    return refusal


def _takes_no_member_late(original: Any) -> Any:
    def refusal(turn: Any, request: Any) -> Code | None:
        late = turn.now.mono_ms > LATE_MS
        return Code.COORDINATOR_NOT_AVAILABLE if late else cast("Code | None", original(turn, request))

    return refusal


def _grouped(drawn: Options) -> Options:
    """Two members of a group, which lose sight of their coordinator."""
    return drawn.but(members=2, troubles=("one_way", "isolated", "kill"), troublemakers=2, chaos_seconds=25.0)


def _dark(drawn: Options) -> Options:
    """All machines lose power, again and again."""
    topic = TopicShape("t0", 2, 3, 2, "none")
    return drawn.but(
        topics=(topic,), troubles=("power_all", "power"), troublemakers=2, pause_seconds=1.0, send_rate=4.0,
        segment_bytes=4096, latency_seconds=0.001, chaos_seconds=25.0, rebuild=False,
    )  # fmt: skip


def _erring(drawn: Options) -> Options:
    """The bucket errs often."""
    return drawn.but(worst_fault=0.2)


def _zombies(drawn: Options) -> Options:
    """Controllers freeze while others collect what they are about to write."""
    return drawn.but(
        troubles=("freeze", "isolated"), troublemakers=2, pause_seconds=1.0, snapshot_slots=2, admin=True,
        session_ms=1500, worst_fault=0.1, chaos_seconds=25.0,
    )  # fmt: skip


def _rotting(drawn: Options) -> Options:
    """Bits flip."""
    return drawn.but(rot=True)


def _never_doubts(original: Any) -> Any:
    return lambda logs, at: False


def _at_once(original: Any) -> Any:
    return lambda tiering: 1


PLANTS = {
    plant.name: plant
    for plant in (
        Plant(
            "no_epochs", "a follower's history is taken for the leader's own",
            ((replica, "judge", _compares_no_epochs),),
        ),
        Plant("unclean_election", "any replica leads", ((in_sync, "_last_resort", _whoever_lives),)),
        Plant("r1_keeps_leading", "a new incarnation keeps its place", ((in_sync, "returned", _keeps_its_place),)),
        Plant(
            "r4_first_leads", "no wait for the others",
            ((in_sync, "_last_resort", _whoever_returns_first),), _dark, 0,
        ),
        Plant(
            "r2_joins_behind", "joins at a stale high watermark",
            ((Partition, "may_join", _joins_at_a_stale_high_watermark),), seeds=0,
        ),
        Plant("r3_moves_below", "moves below min ISR", ((Partition, "_move", _moves_below_min_isr),)),
        Plant(
            "slot_reuse", "a collected slot is taken for free",
            ((MetadataLog, "_check_boundary", _never_looks_at_the_boundary),), _zombies,
        ),
        Plant(
            "recreated_slot", "a reader obeys a collected slot that was written again",
            ((Following, "catch_up", _obeys_whatever_slot_is_there),), _zombies,
        ),
        Plant(
            "equal_epochs", "a candidate stands with the epoch that it read",
            ((metadata_log, "stand", _stands_with_the_same_epoch),),
        ),
        Plant(
            "lost_reply", "an own lost reply is taken for a failure",
            ((MetadataLog, "_write", _takes_its_own_lost_reply_for_a_failure),), _erring,
        ),
        Plant(
            "zombie_controller", "who lost a slot writes into the next",
            ((MetadataLog, "append", _writes_on_when_it_lost),),
        ),
        Plant("manifest_first", "the manifest before the object", ((Uploader, "_copy", _names_it_first),)),
        Plant(
            "local_delete_first", "a local delete before the manifest",
            ((retention, "local_start", _drops_what_is_not_cold),),
        ),
        Plant(
            "retention_too_greedy", "retention takes every closed segment",
            ((retention, "plan", _keeps_the_open_segment_alone),),
        ),
        Plant(
            "sweep_too_early", "the sweep takes what is being made",
            ((collector, "garbage", _sweeps_what_is_in_the_making), (Tiering, "_settled_ms", _at_once)), _erring, 0,
        ),
        Plant(
            "named_deleted", "the sweep takes what the manifest names",
            ((collector, "garbage", _sweeps_what_is_named), (Tiering, "_settled_ms", _at_once)),
        ),
        Plant(
            "fenced_upload", "a manifest takes changes of any epoch",
            ((ManifestStore, "change", _changes_it_under_any_epoch),),
        ),
        Plant("below_cold_end", "a new leader trusts its log alone", ((leading, "reconcile", _trusts_its_own_log),)),
        Plant(
            "sequences_lost", "a restart forgets the producers", ((DiskLog, "open", _forgets_producers_at_a_start),)
        ),
        Plant(
            "duplicate_after_failover", "a follower does not learn the producers",
            ((DiskLog, "append_as_follower", _forgets_producers_while_it_follows),),
        ),
        Plant("above_high_watermark", "readers get all there is", ((Readable, "ends", _serves_all_it_has),)),
        Plant(
            "wrong_cold_epoch", "a cold epoch ends where the log does",
            ((offsets, "_end_of_cold_epoch", _takes_the_end_of_the_log),), seeds=0,
        ),
        Plant("rot_is_whole", "a log that has rotted counts", ((Logs, "is_doubted", _never_doubts),), _rotting),
        Plant(
            "old_generation", "a member that is out commits", ((commits, "_refusal", _commits_for_anybody),), _grouped
        ),
        Plant(
            "nobody_joins", "after a while no group takes a member",
            ((joining, "_refusal", _takes_no_member_late),), _grouped,
        ),
    )
}  # fmt: skip


REPLAYED = {
    "r1_keeps_leading": 1,
    "r3_moves_below": 3,
    "equal_epochs": 0,
    "lost_reply": 2,
    "zombie_controller": 2,
    "manifest_first": 0,
    "local_delete_first": 7,
    "named_deleted": 0,
    "retention_too_greedy": 2,
    "duplicate_after_failover": 3,
    "above_high_watermark": 0,
    "old_generation": 1,
    "nobody_joins": 0,
    "slot_reuse": 7,
    "recreated_slot": 3,
    "no_epochs": 11,
    "below_cold_end": 20,
    "sequences_lost": 71,
    "rot_is_whole": 0,
}
"""By plant: the first of a few seeds that show it. The others take a search, and have a story (`stories.py`)."""
