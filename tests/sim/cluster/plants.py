"""Bugs planted on purpose: each breaks one rule by putting another function in the place of a production one, in this
process and for a while. A simulator that does not find them proves nothing.

`seeds` is within how many seeds a search must find it (`make sim-plants`; 0 where a few hundred do not show it, and its
story alone does), and `of` what makes the drawn options fit to show it: the rest stays as it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tests.sim.cluster import bugs
from tests.sim.cluster.options import Options, TopicShape
from tiered.cold import collector
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.uploader import Uploader
from tiered.following import Following
from tiered.hot import retention
from tiered.hot.disk_log import DiskLog
from tiered.hot.segment_files import OpenFiles
from tiered.logs import Logs
from tiered.metadata import in_sync, metadata_log
from tiered.metadata.group_images import GroupImages
from tiered.metadata.groups import joining
from tiered.metadata.groups import offsets as commits
from tiered.metadata.metadata_log import MetadataLog
from tiered.metadata.runtime import Runtime
from tiered.replication import leading, offsets, replica
from tiered.replication.partition import Partition
from tiered.replication.readable import Readable
from tiered.tiering import Tiering
from tiered_api.kafka.link import Link

Owner = type[Any] | ModuleType
Make = Callable[[Any], Any]


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
            stack.callback(bugs.LEFT.clear)
            yield


def _grouped(drawn: Options) -> Options:
    """Two members of a group, which lose sight of their coordinator."""
    return drawn.but(members=2, troubles=("one_way", "isolated", "kill"), troublemakers=2, chaos_seconds=25.0)


def _rebuilt(drawn: Options) -> Options:
    """A group, and in the end the bucket alone."""
    return drawn.but(members=2, troubles=(), chaos_seconds=15.0, rebuild=True)


def _cut_off(drawn: Options) -> Options:
    """Answers get lost, again and again."""
    return drawn.but(
        troubles=("freeze", "one_way", "isolated"), troublemakers=2, pause_seconds=1.0, chaos_seconds=25.0
    )  # fmt: skip


def _dark(drawn: Options) -> Options:
    """All machines lose power, again and again."""
    topic = TopicShape("t0", 1, 2, 2, "none")
    return drawn.but(
        topics=(topic,), troubles=("power_all",), troublemakers=1, pause_seconds=1.0, send_rate=8.0, senders=3,
        segment_bytes=4096, latency_seconds=0.001, chaos_seconds=25.0, rebuild=False, worst_fault=0.0, admin=False,
        moves=False, members=0, rot=False,
    )  # fmt: skip


def _catching_up(drawn: Options) -> Options:
    """Followers that come back need many fetches."""
    topic = TopicShape("t0", 1, 3, 2, "none")
    return drawn.but(
        topics=(topic,), troubles=("kill", "isolated"), troublemakers=2, pause_seconds=1.0, send_rate=8.0, senders=3,
        segment_bytes=4096, latency_seconds=0.05, chaos_seconds=25.0, rebuild=False, worst_fault=0.0, admin=False,
        moves=False, members=0, rot=False, fetch_bytes=1000,
    )  # fmt: skip


def _uploading(drawn: Options) -> Options:
    """Nothing but uploads, to a bucket that errs half of the time."""
    topic = TopicShape("t0", 2, 2, 1, "none")
    return drawn.but(
        topics=(topic,), troubles=(), worst_fault=0.3, segment_bytes=1024, send_rate=8.0, senders=3, rot=False,
        chaos_seconds=25.0, retention_bytes=-1, manifest_fan=32,
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


def _administered(drawn: Options) -> Options:
    """Somebody changes topics all the time."""
    return drawn.but(admin=True, worst_fault=max(drawn.worst_fault, 0.05))


PLANTS = {
    plant.name: plant
    for plant in (
        Plant(
            "no_epochs", "a follower's history is taken for the leader's own",
            ((replica, "judge", bugs.compares_no_epochs),),
        ),
        Plant("unclean_election", "any replica leads", ((in_sync, "_last_resort", bugs.whoever_lives),)),
        Plant("r1_keeps_leading", "a new incarnation keeps its place", ((in_sync, "returned", bugs.keeps_its_place),)),
        Plant(
            "r4_first_leads", "no wait for the others",
            ((in_sync, "_last_resort", bugs.whoever_returns_first),), _dark,
        ),
        Plant(
            "r2_joins_behind", "joins at a stale high watermark",
            ((Partition, "may_join", bugs.joins_at_a_stale_high_watermark),), _catching_up,
        ),
        Plant("r3_moves_below", "moves below min ISR", ((Partition, "_move", bugs.moves_below_min_isr),)),
        Plant(
            "slot_reuse", "a collected slot is taken for free",
            ((MetadataLog, "_check_boundary", bugs.never_looks_at_the_boundary),), _zombies,
        ),
        Plant(
            "recreated_slot", "a reader obeys a collected slot that was written again",
            ((Following, "catch_up", bugs.obeys_whatever_slot_is_there),), _zombies,
        ),
        Plant(
            "equal_epochs", "a candidate stands with the epoch that it read",
            ((metadata_log, "stand", bugs.stands_with_the_same_epoch),),
        ),
        Plant(
            "lost_reply", "an own lost reply is taken for a failure",
            ((MetadataLog, "_write", bugs.takes_its_own_lost_reply_for_a_failure),), _erring,
        ),
        Plant(
            "zombie_controller", "who lost a slot writes into the next",
            ((MetadataLog, "append", bugs.writes_on_when_it_lost),), _zombies,
        ),
        Plant(
            "answers_at_once", "a change is answered before it is committed",
            ((Runtime, "submit", bugs.answers_at_once),), _administered,
        ),
        Plant("manifest_first", "the manifest before the object", ((Uploader, "_copy", bugs.names_it_first),)),
        Plant(
            "local_delete_first", "a local delete before the manifest",
            ((retention, "local_start", bugs.drops_what_is_not_cold),),
        ),
        Plant(
            "retention_too_greedy", "retention takes every closed segment",
            ((retention, "plan", bugs.keeps_the_open_segment_alone),),
        ),
        Plant(
            "sweep_too_early", "the sweep takes what is being made",
            ((collector, "garbage", bugs.sweeps_what_is_in_the_making), (Tiering, "_settled_ms", bugs.at_once)),
            _uploading,
        ),
        Plant(
            "named_deleted", "the sweep takes what the manifest names",
            ((collector, "garbage", bugs.sweeps_what_is_named), (Tiering, "_settled_ms", bugs.at_once)),
        ),
        Plant(
            "fenced_upload", "a manifest takes changes of any epoch",
            ((ManifestStore, "change", bugs.changes_it_under_any_epoch),),
        ),
        Plant(
            "below_cold_end", "a new leader trusts its log alone",
            ((leading, "reconcile", bugs.trusts_its_own_log),),
        ),
        Plant(
            "sequences_lost", "a restart forgets the producers", ((DiskLog, "open", bugs.forgets_producers_at_a_start),)
        ),
        Plant(
            "duplicate_after_failover", "a follower does not learn the producers",
            ((DiskLog, "append_as_follower", bugs.forgets_producers_while_it_follows),),
        ),
        Plant("above_high_watermark", "readers get all there is", ((Readable, "ends", bugs.serves_all_it_has),)),
        Plant(
            "wrong_cold_epoch", "a cold epoch ends where the log does",
            ((offsets, "_end_of_cold_epoch", bugs.takes_the_end_of_the_log),), seeds=0,
        ),
        Plant("rot_is_whole", "a log that has rotted counts", ((Logs, "is_doubted", bugs.never_doubts),), _rotting),
        Plant(
            "old_generation", "a member that is out commits",
            ((commits, "_refusal", bugs.commits_for_anybody),), _grouped,
        ),
        Plant(
            "streams_left", "a lost link leaves its stream open",
            ((Link, "_lose", bugs.leaves_the_stream_open),), _cut_off,
        ),
        Plant(
            "files_left", "files are opened and never closed",
            ((OpenFiles, "get", bugs.opens_a_file_for_each_read),),
        ),
        Plant(
            "groups_lost", "images of groups hold nothing",
            ((GroupImages, "write", bugs.keeps_nothing_of_groups),), _rebuilt,
        ),
        Plant(
            "nobody_joins", "after a while no group takes a member",
            ((joining, "_refusal", bugs.takes_no_member_late),), _grouped,
        ),
    )
}  # fmt: skip


REPLAYED = {
    "r1_keeps_leading": 1,
    "r3_moves_below": 3,
    "equal_epochs": 0,
    "lost_reply": 2,
    "zombie_controller": 0,
    "answers_at_once": 2,
    "manifest_first": 0,
    "local_delete_first": 7,
    "named_deleted": 0,
    "retention_too_greedy": 2,
    "duplicate_after_failover": 68,
    "above_high_watermark": 0,
    "old_generation": 1,
    "nobody_joins": 0,
    "groups_lost": 0,
    "streams_left": 3,
    "files_left": 0,
    "slot_reuse": 7,
    "recreated_slot": 3,
    "no_epochs": 11,
    "below_cold_end": 20,
    "sequences_lost": 71,
    "r2_joins_behind": 4,
    "sweep_too_early": 28,
    "rot_is_whole": 0,
}
"""By plant: the first of a few seeds that show it. The others take a search, and have a story (`stories.py`)."""
