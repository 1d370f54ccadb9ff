"""Bugs put in on purpose. Each breaks one rule: it replaces a production function in this process for a while. A
simulator that does not find them proves nothing.

`rules` are the rules that a mutant breaks: a run that fails for another reason has not found it. `seeds` is the number
of seeds within which a search must find it (`make sim-mutants`). `of` changes the drawn options so that the bug can
show; the other options stay as drawn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from tests.sim.cluster.options import CHAINS, ClusterOptions, TopicShape, compaction_options
from tests.sim.cluster.shapes import of_consumers
from tests.sim.harness.disk import SimFile
from tests.sim.mutants import bugs, chain_bugs, compaction_bugs, rest_bugs, transaction_bugs
from tiered.cold import cold_cleaning, collector
from tiered.cold.cold_cleaning import ColdCleaning
from tiered.cold.collector import Collector
from tiered.cold.manifest import Manifest
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.cold.uploader import Uploader
from tiered.compaction.batch_filter import CleanRules
from tiered.compaction.transactions import CleanedTransactions
from tiered.controller import brokers, partition_transitions, reassignment, topics
from tiered.controller.controller_queries import ControllerQueries
from tiered.controller.runtime import Runtime
from tiered.controller.standby import StandbyController
from tiered.coordination.transaction_markers import TransactionMarkers
from tiered.coordinator.runtime import CoordinatorRuntime
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore
from tiered.durability import log_mover
from tiered.durability.log_store import LogStore
from tiered.groups import join
from tiered.groups import offsets as commits
from tiered.groups import shard as groups_shard
from tiered.groups.consumer import fencing, reconciliation
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.log_state import LogState
from tiered.groups.pending_offsets import PendingOffsets
from tiered.groups.shard import GroupShard
from tiered.hosting.hosted_replicas import HostedReplicas
from tiered.hot import interrupted_swaps, log_cleaning, log_compaction, retention
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_cleaning import LogCleaning
from tiered.hot.segment_files import OpenFiles
from tiered.metadata import log_writer
from tiered.metadata.log_writer import MetadataLog
from tiered.producers.states import ProducerStates
from tiered.producers.verification import VerificationGuards
from tiered.replication import become_leader, leader_replica, offset_lookup
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.leader_state import LeaderState
from tiered.transactions import end, partitions, producer_init
from tiered.transactions import shard as transaction_shard
from tiered.transactions.decision import ShardState
from tiered.transactions.shard import TransactionShard
from tiered.upkeep import chain_deletion
from tiered.upkeep.tiering import Tiering
from tiered.wal.chain_writer import ChainWriter
from tiered.wal.takeover import ChainTakeover
from tiered.wal.trimming import ChainTrimming
from tiered.wal.window import DecidedSlots
from tiered_api.cli.broker import processes
from tiered_api.http.consumers.instance import ConsumerInstance
from tiered_api.http.consumers.reading import ConsumerPoll
from tiered_api.http.v2 import consumers
from tiered_api.kafka.client.connection import BrokerConnection

_ERROR = re.compile(r"^[A-Za-z_][\w.]*: (?:liveness: not within [\d.]+ s: )?(.*)$", re.MULTILINE)
IN_SYNC = "every broker serves, every partition is led and in sync"
Owner = type[Any] | ModuleType
Wrap = Callable[[Any], Any]


def failure_reason(report: str) -> str:
    """Returns the cause of a failed run, from the text of its failure: the first broken rule, or the state that was not
    reached in time; "" for a run that passed."""
    return (_ERROR.findall(report) or report.splitlines() or [""])[-1]


@dataclass(frozen=True)
class SimMutant:
    """One bug. `make` turns each original function into one with the bug. `rules` are the rules that it breaks, or the
    beginning of the text of a state that is not reached in time. A run that fails for another reason has found
    something else."""

    name: str
    description: str
    rules: tuple[str, ...]
    patches: tuple[tuple[Owner, str, Wrap], ...]
    adjust: Callable[[ClusterOptions], ClusterOptions] = lambda drawn: drawn
    seeds: int = 200

    def explains(self, failure: str) -> bool:
        """True if the cause of a failed run (`failure_reason`) is one of its rules."""
        return any(re.match(rf"{rule}\b", failure) for rule in self.rules)

    def change_options(self, drawn: ClusterOptions) -> ClusterOptions:
        """Returns the options of a run with this bug: without a compacted topic, unless the bug needs one."""
        return self.adjust(drawn.without_compaction())

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Puts the bug in for the duration of the context."""
        with ExitStack() as stack:
            for owner, name, make in self.patches:
                original = owner.__dict__[name]
                setattr(owner, name, make(original))
                stack.callback(setattr, owner, name, original)
            stack.callback(bugs.LEAKED.clear)
            yield


def _with_machines(drawn: ClusterOptions) -> ClusterOptions:
    """Gives each machine two processes, and cuts machines off."""
    return drawn.with_changes(
        topics=(TopicShape("t0", 2, 3, 2, "none"),), processes=2, moves=True, admin=True, troubles=("isolated",),
        troublemakers=1, session_ms=1500, worst_fault=0.0, bucket_rate=0.0, chaos_seconds=25.0, rebuild=False,
        members=0, rot=False, joins=False, changes=(),
    )  # fmt: skip


def _with_process_changes(drawn: ClusterOptions) -> ClusterOptions:
    """Changes the number of processes of machines, whose partitions have one replica."""
    return _with_machines(drawn).with_changes(
        topics=(TopicShape("t0", 6, 1, 1, "none"),),
        changes_processes=True,
        moves=False,
        admin=False,
        troubles=(),
        leaves=False,
    )


def _with_chains(drawn: ClusterOptions) -> ClusterOptions:
    """Gives records one copy, in the bucket, which is slow; brokers lose their disks, and some go on too late."""
    return drawn.with_changes(
        topics=(TopicShape("t0", 2, 1, 1, "bucket"),), troubles=("disk_lost", "freeze", "bucket_away"), troublemakers=1,
        pause_seconds=1.0, session_ms=1500, send_rate=8.0, senders=3, in_flight=5, worst_fault=0.03, bucket_rate=0.0,
        segment_bytes=1024, window_ms=50, chaos_seconds=25.0, rebuild=True, admin=False, moves=False, members=0,
        rot=False, joins=False, changes=(), deletes=False, retention_bytes=-1, retention_ms=-1,
    )  # fmt: skip


def _with_chain_changes(drawn: ClusterOptions) -> ClusterOptions:
    """Changes meanwhile if records are acknowledged once they are in the bucket, and hardly ever closes a segment."""
    return _with_chains(drawn).with_changes(
        changes=(CHAINS,), segment_bytes=1 << 20, rebuild=False, troubles=("disk_lost",), pause_seconds=2.0
    )


def _with_group(drawn: ClusterOptions) -> ClusterOptions:
    """Adds two members of a group that lose contact with their coordinator."""
    return drawn.with_changes(members=2, troubles=("one_way", "isolated", "kill"), troublemakers=2, chaos_seconds=25.0)


def _with_consumers(drawn: ClusterOptions) -> ClusterOptions:
    """Has four members of a consumer group, and little else, while coordinators die and lose contact."""
    return of_consumers(drawn).with_changes(
        topics=(TopicShape("t0", 4, 3, 2, "none"),), group_topics=1, consumers=4, rebuild=False,
        troubles=("kill", "isolated", "one_way"), troublemakers=1, chaos_seconds=25.0,
    )  # fmt: skip


def _with_rebuild(drawn: ClusterOptions) -> ClusterOptions:
    """Adds a group, and at the end the loss of everything but the bucket."""
    return drawn.with_changes(members=2, troubles=(), chaos_seconds=15.0, rebuild=True)


def _lose_replies(drawn: ClusterOptions) -> ClusterOptions:
    """Loses replies repeatedly."""
    return drawn.with_changes(
        troubles=("freeze", "one_way", "isolated"), troublemakers=2, pause_seconds=1.0, chaos_seconds=25.0
    )  # fmt: skip


def _cut_all_power(drawn: ClusterOptions) -> ClusterOptions:
    """Cuts the power of all machines repeatedly."""
    topic = TopicShape("t0", 1, 2, 2, "none")
    return drawn.with_changes(
        topics=(topic,), troubles=("power_all",), troublemakers=1, pause_seconds=1.0, send_rate=8.0, senders=3,
        segment_bytes=4096, latency_seconds=0.001, chaos_seconds=25.0, rebuild=False, worst_fault=0.0, admin=False,
        moves=False, members=0, rot=False,
    )  # fmt: skip


def _catch_up(drawn: ClusterOptions) -> ClusterOptions:
    """Makes followers that come back need many fetches."""
    topic = TopicShape("t0", 1, 3, 2, "none")
    return drawn.with_changes(
        topics=(topic,), troubles=("kill", "isolated"), troublemakers=2, pause_seconds=1.0, send_rate=8.0, senders=3,
        segment_bytes=4096, latency_seconds=0.05, chaos_seconds=25.0, rebuild=False, worst_fault=0.0, admin=False,
        moves=False, members=0, rot=False, fetch_bytes=1000,
    )  # fmt: skip


def _upload_only(drawn: ClusterOptions) -> ClusterOptions:
    """Leaves nothing but uploads, to a bucket that fails half of the time."""
    topic = TopicShape("t0", 2, 2, 1, "none")
    return drawn.with_changes(
        topics=(topic,), troubles=(), worst_fault=0.3, segment_bytes=1024, send_rate=8.0, senders=3, rot=False,
        chaos_seconds=25.0, retention_bytes=-1, manifest_fan=32,
    )  # fmt: skip


def _freeze_uploading_leaders(drawn: ClusterOptions) -> ClusterOptions:
    """Freezes leaders during an upload; they resume when another broker leads."""
    topic = TopicShape("t0", 2, 3, 1, "none")
    return drawn.with_changes(
        topics=(topic,), troubles=("freeze",), troublemakers=2, pause_seconds=1.0, session_ms=1500, worst_fault=0.2,
        bucket_rate=0.0, segment_bytes=1024, send_rate=8.0, senders=3, chaos_seconds=25.0, rebuild=False, admin=False,
        moves=False, members=0, rot=False, retention_bytes=-1, retention_ms=-1,
    )  # fmt: skip


def _forget_epochs(drawn: ClusterOptions) -> ClusterOptions:
    """Changes leaders, deletes cold segments from the disk at once, and cuts the power, so that a disk loses old
    epochs."""
    topic = TopicShape("t0", 2, 2, 1, "none")
    return drawn.with_changes(
        topics=(topic,), troubles=("power", "kill"), troublemakers=2, pause_seconds=1.0, session_ms=1500,
        latency_seconds=0.001, worst_fault=0.0, bucket_rate=0.0, segment_bytes=1024, local_retention_bytes=1,
        send_rate=8.0, senders=3, chaos_seconds=25.0, rebuild=False, admin=False, admin_deletes=False, moves=False,
        members=0, rot=False, retention_bytes=-1, retention_ms=-1,
    )  # fmt: skip


def _restart_leaders(drawn: ClusterOptions) -> ClusterOptions:
    """Kills leaders with many pending requests and starts them before their clients give up."""
    topic = TopicShape("t0", 2, 1, 1, "none")
    return drawn.with_changes(
        topics=(topic,), troubles=("kill", "flapping", "disk_slow"), troublemakers=2, pause_seconds=1.0, send_rate=8.0,
        senders=3, latency_seconds=0.05, chaos_seconds=25.0, rebuild=False, worst_fault=0.0, admin=False, moves=False,
        members=0, joins=False, changes=(), deletes=False, rot=False,
    )  # fmt: skip


def _look_up_times(drawn: ClusterOptions) -> ClusterOptions:
    """Looks up times in a slow bucket, while records move there at once and some are deleted."""
    topic = TopicShape("t0", 2, 2, 1, "none")
    return drawn.with_changes(
        topics=(topic,), troubles=(), has_time_reader=True, first_byte_seconds=0.05, local_retention_bytes=1,
        segment_bytes=1024, send_rate=8.0, senders=3, retention_bytes=-1, retention_ms=-1, latency_seconds=0.001,
        worst_fault=0.0, bucket_rate=0.0, manifest_fan=2, rebuild=False, admin=False, admin_deletes=False, moves=False,
        members=0, rot=False, joins=False, changes=(), deletes=True, transactional_producers=0,
    )  # fmt: skip


def _read_over_rest(drawn: ClusterOptions) -> ClusterOptions:
    """Adds REST consumers that begin at the end, commit by themselves, and whose replies come late or get lost."""
    topic = TopicShape("t0", 2, 3, 2, "none")
    return drawn.with_changes(
        topics=(topic,), troubles=("kill",), troublemakers=1, rest_consumers=3, rest_reset="latest", rest_commits=True,
        rest_pause_seconds=1.5, rest_slow=True, rebuild=False, admin=False, admin_deletes=False, moves=False,
        members=0, rot=False, joins=False, changes=(), deletes=False, retention_bytes=-1, retention_ms=-1,
        worst_fault=0.0, bucket_rate=0.0, transactional_producers=0, small_chunk_share=0.0,
    )  # fmt: skip


def _rebalance_late_readers(drawn: ClusterOptions) -> ClusterOptions:
    """Does the same with more partitions, which move between the consumers while these wait for nothing else."""
    topic = TopicShape("t0", 4, 1, 1, "none")
    return _read_over_rest(drawn).with_changes(
        topics=(topic,), troubles=(), rest_pause_seconds=0.2, send_rate=8.0, chaos_seconds=25.0
    )


def _rebalance_waiting_readers(drawn: ClusterOptions) -> ClusterOptions:
    """Does the same with readers that commit by hand, and wait for few records."""
    return _rebalance_late_readers(drawn).with_changes(rest_commits=False, rest_slow=False, send_rate=1.0, senders=2)


def _fail_bucket_calls(drawn: ClusterOptions) -> ClusterOptions:
    """Makes the bucket fail often."""
    return drawn.with_changes(worst_fault=0.2)


def _freeze_controllers(drawn: ClusterOptions) -> ClusterOptions:
    """Freezes controllers while others collect the slots that they are about to write."""
    return drawn.with_changes(
        troubles=("freeze", "isolated"), troublemakers=2, pause_seconds=1.0, snapshot_slots=2, admin=True,
        session_ms=1500, worst_fault=0.1, chaos_seconds=25.0,
    )  # fmt: skip


def _flip_bits(drawn: ClusterOptions) -> ClusterOptions:
    """Flips bits on disks."""
    return drawn.with_changes(rot=True)


def _change_topics(drawn: ClusterOptions) -> ClusterOptions:
    """Changes topics all the time."""
    return drawn.with_changes(admin=True, worst_fault=max(drawn.worst_fault, 0.05))


def _recreate_topics(drawn: ClusterOptions) -> ClusterOptions:
    """Recreates topics under the same names, and delays the brokers that act on it."""
    return drawn.with_changes(
        admin=True, troubles=(), send_rate=8.0, senders=3,
        chaos_seconds=25.0, rebuild=False, moves=False, members=0, rot=False, worst_fault=0.0, bucket_rate=0.0,
    )  # fmt: skip


def _with_transactions(drawn: ClusterOptions) -> ClusterOptions:
    """Adds transactional producers and copiers, whose coordinators and leaders move. No committed record is lost."""
    topic = TopicShape("t0", 1, 3, 2, "none")
    return drawn.with_changes(
        topics=(topic,), transactional_producers=3, copies=True, source_partitions=2, senders=1, members=0,
        keyed_writers=0,
        troubles=("kill", "freeze", "isolated", "flapping"), troublemakers=2, pause_seconds=1.0, session_ms=1500,
        send_rate=4.0, worst_fault=0.0, bucket_rate=0.0, chaos_seconds=25.0, rebuild=False, admin=False, moves=False,
        rot=False, changes=(), joins=False, leaves=False, deletes=False, min_isr=1, small_chunk_share=0.0,
    )  # fmt: skip


def _with_rivals(drawn: ClusterOptions) -> ClusterOptions:
    """Adds clients to that whose pending offsets are of one partition."""
    return _with_transactions(drawn).with_changes(rivals=2)


def _repeat_reports(drawn: ClusterOptions) -> ClusterOptions:
    """Adds transactions whose coordinators hear of markers twice."""
    return _with_transactions(drawn).with_changes(repeats_reports=True)


def _return_replicas(drawn: ClusterOptions) -> ClusterOptions:
    """Removes replicas that are in sync, and adds them again, while producers wait for all members of the ISR."""
    topic = TopicShape("t0", 2, 3, 2, "none")
    return drawn.with_changes(
        topics=(topic,), moves=True, moves_at_once=1, returns_replicas=True, troubles=("freeze",), troublemakers=1,
        send_rate=8.0, senders=3, worst_fault=0.0, bucket_rate=0.0, chaos_seconds=25.0, rebuild=False, admin=False,
        members=0, rot=False, joins=False, changes=(),
    )  # fmt: skip


def _delete_at_joins(drawn: ClusterOptions) -> ClusterOptions:
    """Deletes records whenever a replica joins the ISR of a topic that is not tiered, and lets them join often."""
    return _return_replicas(drawn).with_changes(
        topics=(TopicShape("t0", 2, 3, 1, "none", tiered=False),), troubles=("kill", "isolated"), troublemakers=2,
        pause_seconds=1.0, deletes_at_joins=True, latency_seconds=0.005,
    )  # fmt: skip


def _with_keys(drawn: ClusterOptions) -> ClusterOptions:
    """Adds writers with idempotency keys to that, whose requests are sent again."""
    return _with_transactions(drawn).with_changes(keyed_writers=3, transactional_producers=1)


def _with_cold_transactions(drawn: ClusterOptions) -> ClusterOptions:
    """Does the same, and keeps nothing on disks that is in the bucket."""
    return _with_transactions(drawn).with_changes(local_retention_bytes=1, segment_bytes=1024)


def _with_compaction(drawn: ClusterOptions) -> ClusterOptions:
    """Adds a compacted topic."""
    rng = random.Random(f"{drawn.seed}/compaction-of-mutants")
    return drawn.with_changes(**compaction_options(rng, drawn.brokers), rebuild=False, admin=False, members=0)


def _with_cold_compaction(drawn: ClusterOptions) -> ClusterOptions:
    """Adds a compacted topic in the bucket."""
    made = _with_compaction(drawn)
    assert made.compacted is not None
    return made.with_changes(compacted=replace(made.compacted, tiered=True))


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        SimMutant(
            "no_epochs", "a follower's history is taken for the leader's own", ("I5", "I6", "I9", "I10"),
            ((leader_replica, "validate_offset_and_epoch", bugs.ignore_diverging_epochs),),
        ),
        SimMutant(
            "unclean_election", "any replica leads", ("I9", "I10", "R4"),
            ((partition_transitions, "_last_resort", bugs.elect_any_live_replica),),
        ),
        SimMutant(
            "r1_keeps_leading", "a new incarnation keeps its place", ("I8", "R1"),
            ((partition_transitions, "register_broker", bugs.keep_isr_after_restart),),
        ),
        SimMutant(
            "tiers_searched_apart", "a look-up by time searches both tiers as they were at its begin", ("I33",),
            ((LeaderReads, "offset_for_timestamp", bugs.search_each_tier_once),), _look_up_times,
        ),
        SimMutant(
            "reset_not_committed", "REST consumers commit delivered records only, and no position of a reset", ("I34",),
            ((ConsumerInstance, "_reset", rest_bugs.forget_resets),), _read_over_rest, seeds=20,
        ),
        SimMutant(
            "marked_before_reply", "records count as delivered before their reply is sent", ("I34",),
            ((consumers, "poll_records", rest_bugs.mark_before_reply),), _read_over_rest, seeds=20,
        ),
        SimMutant(
            "marked_after_rebalance", "a late reply counts under another assignment", ("I34",),
            ((ConsumerPoll, "mark_delivered", rest_bugs.mark_under_any_assignment),), _rebalance_late_readers, seeds=20,
        ),
        SimMutant(
            "round_after_rebalance", "a read goes on with the partitions of before a rebalance", ("I34",),
            ((ConsumerPoll, "read_round", rest_bugs.read_on_after_rebalance),), _rebalance_waiting_readers, seeds=20,
        ),
        SimMutant(
            "removed_within_epoch", "a replica leaves within a leader epoch", ("R3",),
            ((partition_transitions, "_keep_replicas", bugs.keep_leader_epoch),), _return_replicas,
        ),
        SimMutant(  # shows in no cluster, where a replica leaves with a new leader epoch (`removed_within_epoch`)
            "progress_of_removed", "a leader keeps the progress of replicas that were removed", ("progress of",),
            ((LeaderState, "apply_isr", bugs.keep_progress_of_removed_replicas),),
        ),
        SimMutant(
            "deletion_past_proposed", "a deletion does not wait for a member that is only proposed", ("I22",),
            ((LeaderState, "is_deleted_on_isr", bugs.ask_committed_members_only),), _delete_at_joins,
        ),
        SimMutant(
            "older_offset_outlives", "an older pending offset outlives the commit of a later one", ("I15",),
            ((PendingOffsets, "_supersede_older", transaction_bugs.keep_older_offsets),), _with_rivals,
        ),
        SimMutant(
            "any_marker_completes", "markers of an earlier transaction complete the next one", ("I14",),
            ((end, "handle_markers_written", transaction_bugs.count_markers_of_any_epoch),), _repeat_reports,
        ),
        SimMutant(
            "r4_first_leads", "no wait for the others", ("R4", "I9"),
            ((partition_transitions, "_last_resort", bugs.elect_first_to_return),), _cut_all_power,
        ),
        SimMutant(
            "r2_joins_behind", "joins at a stale high watermark", ("I9", "I10"),
            ((LeaderState, "should_join_isr", bugs.join_at_stale_watermark),), _catch_up,
        ),
        SimMutant("r3_moves_below", "moves below min ISR", ("R3",), ((LeaderState, "_advance_high_watermark",
            bugs.advance_below_min_isr),)),
        SimMutant(
            "slot_reuse", "a collected slot is taken for free", ("I8", "I9", "I24", "I25"),
            ((MetadataLog, "_check_boundary", bugs.skip_boundary_check),), _freeze_controllers,
        ),
        SimMutant(
            "recreated_slot", "a reader obeys a collected slot that was written again", ("I9", "I24"),
            ((StandbyController, "catch_up", bugs.read_collected_slots),), _freeze_controllers,
        ),
        SimMutant(
            "equal_epochs", "a candidate stands with the epoch that it read", ("I24", "I25"),
            ((log_writer, "new_candidate", bugs.reuse_controller_epoch),),
        ),
        SimMutant(
            "lost_reply", "an own lost reply is taken for a failure", ("I24",),
            ((MetadataLog, "_write", bugs.repeat_written_slot),), _fail_bucket_calls,
        ),
        SimMutant(
            "zombie_controller", "who lost a slot writes into the next", ("I24", "I25"),
            ((MetadataLog, "append", bugs.append_after_lost_slot),), _freeze_controllers,
        ),
        SimMutant(
            "answers_at_once", "a change is answered before it is committed", ("I24", "M5"),
            ((Runtime, "submit", bugs.reply_before_commit),), _change_topics,
        ),
        SimMutant(
            "manifest_first", "the manifest before the object", ("I23",),
            ((Uploader, "_upload_object", bugs.put_manifest_first),),
        ),
        SimMutant(
            "local_delete_first", "a local delete before the manifest", ("I22",),
            ((retention, "find_local_start", bugs.drop_unuploaded_segments),),
        ),
        SimMutant(
            "retention_too_greedy", "retention takes every closed segment", ("I22",),
            ((retention, "plan_retention", bugs.keep_active_segment_only),),
        ),
        SimMutant(
            "sweep_too_early", "the sweep takes what is being made", ("I23",),
            (
                (collector, "find_garbage", bugs.sweep_unfinished_objects),
                (Tiering, "run_steps", bugs.sweep_during_upload),
            ),
            _upload_only,
        ),
        SimMutant(
            "named_deleted", "the sweep takes what the manifest names", ("I23",),
            ((collector, "find_garbage", bugs.sweep_named_objects), (Tiering, "_sweep_delay_ms",
             bugs.skip_settle_time)),
        ),
        SimMutant(
            "fenced_upload", "a manifest takes changes of any epoch", ("I16",),
            ((ManifestStore, "change", bugs.skip_epoch_fence),), _freeze_uploading_leaders,
        ),
        SimMutant(
            "below_cold_end", "a new leader trusts its log alone", ("R5",),
            ((become_leader, "reconcile", bugs.skip_reconcile),),
        ),
        SimMutant(
            "sequences_lost", "a restart forgets the producers", ("I11",),
            ((DiskLog, "open", bugs.forget_producers_on_start),), _restart_leaders,
        ),
        SimMutant(
            "duplicate_after_failover", "a follower does not learn the producers", ("I11",),
            ((DiskLog, "append_as_follower", bugs.forget_producers_on_follow),),
        ),
        SimMutant(
            "above_high_watermark", "readers get all there is", ("I4",),
            ((LeaderReads, "offset_snapshot", bugs.serve_to_log_end),),
        ),
        SimMutant(
            "wrong_cold_epoch", "a cold epoch ends where the log does", ("I4",),
            ((offset_lookup, "_cold_end_offset_for_epoch", bugs.use_log_end_for_epoch),), _forget_epochs,
        ),
        SimMutant(
            "rot_is_whole", "a log that has rotted counts", ("I9", "R1"),
            ((LogStore, "is_suspect", bugs.never_suspect),), _flip_bits,
        ),
        SimMutant(
            "old_generation", "a member that is out commits", ("I18",),
            ((commits, "_validate_commit", bugs.accept_any_commit),), _with_group,
        ),
        SimMutant(
            "given_before_free", "a member of a consumer group gets what another one owns", ("I17", "groups"),
            ((ConsumerGroup, "is_free", bugs.take_all_for_free),), _with_consumers,
        ),
        SimMutant(
            "revoked_unasked", "members of a consumer group count as having given up partitions", ("I17",),
            ((reconciliation, "owns_any", bugs.own_nothing),), _with_consumers,
        ),
        SimMutant(
            "old_member_epoch", "a member of a consumer group commits with an epoch that it left", ("I18",),
            ((fencing, "_check_epoch", bugs.accept_any_epoch),), _with_consumers,
        ),
        SimMutant(
            "sessions_end_with_coordinators", "members of consumer groups never expire after a move", ("groups",),
            ((groups_shard, "schedule_session", bugs.forget_sessions),), _with_consumers,
        ),
        SimMutant(
            "served_by_name", "a broker serves what it has not acted on yet", ("ID", "I5", "I6", "I16"),
            ((HostedReplicas, "stop_topics", bugs.skip_replica_stop), (HostedReplicas, "_is_deleted",
             bugs.keep_leading_deleted_topic)),
            _recreate_topics,
        ),
        SimMutant(
            "streams_left", "a lost link leaves its stream open", ("I30",),
            ((BrokerConnection, "_fail_connection", bugs.leave_stream_open),), _lose_replies,
        ),
        SimMutant(
            "files_left", "files are opened and never closed", ("I30",),
            ((OpenFiles, "get", bugs.open_file_per_read),),
        ),
        SimMutant(
            "groups_lost", "snapshots of groups hold nothing", ("I31",),
            ((CoordinatorSnapshotStore, "write", bugs.write_empty_snapshot),), _with_rebuild,
        ),
        SimMutant(
            "nobody_joins", "after a while no group takes a member", ("every partition of the group has an owner",),
            ((join, "_validate_join", bugs.refuse_late_members),), _with_group,
        ),
        SimMutant(
            "marker_before_decision", "markers are sent before the decision is committed", ("I14", "I15"),
            ((CoordinatorRuntime, "_enqueue", transaction_bugs.report_events_at_once),), _with_transactions,
        ),
        SimMutant(
            "markers_forgotten", "a coordinator that moved asks for no markers",
            ("every transaction is decided", "no offset of a transaction is pending", "every copier reaches the end"),
            ((TransactionShard, "on_loaded", transaction_bugs.forget_markers_at_load),), _with_transactions,
        ),
        SimMutant(
            "timeouts_forgotten", "a coordinator that moved aborts nothing at its timeout",
            ("every transaction is decided", "no offset of a transaction is pending", "every copier reaches the end"),
            ((transaction_shard, "schedule_timeout", transaction_bugs.forget_timeouts_at_load),), _with_transactions,
        ),
        SimMutant(
            "fence_forgotten", "a fence is not in the log", ("I16",),
            ((producer_init, "handle_init_producer_id", transaction_bugs.fence_in_memory_only),), _with_transactions,
        ),
        SimMutant(
            "fence_skipped", "an earlier epoch is taken for the present one", ("I16",),
            (
                (partitions, "check_producer", transaction_bugs.skip_fence),
                (VerificationGuards, "is_valid", transaction_bugs.accept_without_guard),
            ),
            _with_transactions,
        ),
        SimMutant(
            "commit_aborted_at_move", "a coordinator that moved aborts what is committed", ("I14", "I15"),
            ((ShardState, "apply", transaction_bugs.abort_what_is_decided),), _with_transactions,
        ),
        SimMutant(
            "refused_marker_counts", "a partition without its marker counts as done",
            ("every transaction is decided", "no offset of a transaction is pending", "every copier reaches the end",
             "I14", "I15"),
            ((TransactionMarkers, "_take_codes", transaction_bugs.count_refused_markers),), _with_transactions,
        ),
        SimMutant(
            "past_open_transactions", "the last stable offset passes open transactions", ("I14",),
            ((LeaderReads, "offset_snapshot", transaction_bugs.ignore_open_transactions),),
            _with_transactions,
        ),
        SimMutant(
            "followed_transactions_forgotten", "a follower does not learn of open transactions", ("I14",),
            ((DiskLog, "append_as_follower", transaction_bugs.forget_transactions_on_follow),), _with_transactions,
        ),
        SimMutant(
            "unverified", "a transaction begins without its coordinator",
            ("I14", "I16", "every transaction is decided", "every copier reaches the end"),
            (
                (ProducerStates, "find_unverified", transaction_bugs.verify_nothing),
                (VerificationGuards, "is_valid", transaction_bugs.accept_without_guard),
            ),
            _with_transactions,
        ),
        SimMutant(
            "aborted_not_listed", "a reply names no aborted transactions", ("I14",),
            ((DiskLog, "read_committed", transaction_bugs.list_no_aborted),), _with_transactions,
        ),
        SimMutant(
            "aborted_unsorted", "the list of aborted transactions is not sorted", ("I14",),
            ((DiskLog, "read_committed", transaction_bugs.list_aborted_backwards),), _with_transactions,
        ),
        SimMutant(
            "offsets_before_commit", "offsets are visible before the commit", ("I15", "I18"),
            ((LogState, "apply", transaction_bugs.commit_offsets_at_once),), _with_transactions,
        ),
        SimMutant(
            "aborted_offsets_commit", "an abort commits the offsets", ("I15",),
            ((LogState, "end_transaction", transaction_bugs.commit_aborted_offsets),), _with_transactions,
        ),
        SimMutant(
            "committed_offsets_drop", "a commit drops the offsets", ("I15",),
            ((LogState, "end_transaction", transaction_bugs.drop_committed_offsets),), _with_transactions,
        ),
        SimMutant(
            "markers_of_offsets_not_loaded", "a loaded shard of groups has not seen the markers",
            ("I15", "every copier reaches the end", "no offset of a transaction is pending"),
            ((GroupShard, "end_transaction", transaction_bugs.forget_markers_of_offsets),), _with_transactions,
        ),
        SimMutant(
            "unstable_offsets", "a stable offset is one that a transaction may still change", ("I15",),
            ((PendingOffsets, "has_partition", transaction_bugs.hide_pending_offsets),), _with_transactions,
        ),
        SimMutant(
            "old_marker", "a marker of an earlier epoch ends a later transaction", ("I14", "I15"),
            ((ProducerStates, "is_marker_due", transaction_bugs.accept_any_marker),), _with_transactions,
        ),
        SimMutant(
            "guard_outlives_marker", "a guard is valid after the marker", ("I14", "every transaction is decided"),
            ((VerificationGuards, "invalidate", transaction_bugs.keep_guards),), _with_transactions,
        ),
        SimMutant(
            "pending_not_in_image", "a snapshot of groups lacks open transactions", ("I15",),
            ((PendingOffsets, "snapshot", transaction_bugs.leave_pending_offsets_out),), _with_transactions,
        ),
        SimMutant(
            "key_forgotten_at_load", "a coordinator that moved does not know which keys are committed",
            ("I11", "I14"), ((ShardState, "apply", transaction_bugs.forget_replies_at_load),), _with_keys,
        ),
        SimMutant(
            "key_forgotten_by_failover", "a follower does not remember the keys of the records that it copies",
            ("I11", "I14"), ((DiskLog, "append_as_follower", transaction_bugs.forget_keys_on_follow),), _with_keys,
        ),
        SimMutant(
            "aborted_cut_at_seam", "a read from the bucket names no aborted transactions", ("I14",),
            ((ColdReader, "_find_aborted", transaction_bugs.list_no_aborted_of_cold),), _with_cold_transactions,
        ),
        SimMutant(
            "tombstone_too_early", "a tombstone goes with the next clean", ("I26",),
            ((CleanRules, "of", compaction_bugs.forget_delete_retention),), _with_compaction,
        ),
        SimMutant(
            "lost_at_pass_boundary", "what lies above the keys of a clean goes", ("I26",),
            ((log_cleaning, "clean_batches", compaction_bugs.drop_what_the_map_does_not_cover),), _with_compaction,
        ),
        SimMutant(
            "pass_boundary_forgotten", "keys without a place count as clean", ("I26",),
            ((LogCleaning, "_build_map", compaction_bugs.count_uncovered_as_clean),), _with_compaction,
        ),
        SimMutant(
            "last_sequence_cleaned", "the batch with the last sequence of a producer goes", ("I26",),
            ((log_cleaning, "last_records", compaction_bugs.forget_last_sequences),), _with_compaction,
        ),
        SimMutant(
            "marker_before_data", "a marker goes before its records", ("I26",),
            ((CleanedTransactions, "is_marker_needless", compaction_bugs.need_no_marker),), _with_compaction,
        ),
        SimMutant(
            "aborted_supersedes", "an aborted record counts as the last one", ("I26",),
            ((CleanedTransactions, "is_aborted", compaction_bugs.take_aborted_for_committed),), _with_compaction,
        ),
        SimMutant(
            "cleaned_past_stable", "records of open transactions are cleaned", ("I26",),
            ((log_compaction, "find_cleanable", compaction_bugs.clean_past_stable_offset),), _with_compaction,
        ),
        SimMutant(
            "cleaned_past_watermark", "records that are not committed are cleaned", ("I26",),
            ((log_compaction, "find_cleanable", compaction_bugs.clean_past_high_watermark),), _with_compaction,
        ),
        SimMutant(
            "cleaned_too_young", "min.compaction.lag.ms is ignored", ("I26",),
            ((log_compaction, "find_cleanable", compaction_bugs.ignore_lag),), _with_compaction,
        ),
        SimMutant(
            "old_time_index", "a cleaned segment keeps the time index of the old one", ("I26",),
            ((LogCleaning, "_write_beside", compaction_bugs.keep_old_time_index),), _with_compaction,
        ),
        SimMutant(
            "swap_before_sync", "a swap begins before its files are durable", ("I26",),
            ((SimFile, "sync", compaction_bugs.skip_sync_of_cleaned),), _with_compaction,
        ),
        SimMutant(
            "replaced_left", "a start leaves segments that a swap replaced", ("I26",),
            ((interrupted_swaps, "_end_of_swap", compaction_bugs.leave_what_was_replaced),), _with_compaction,
        ),
        SimMutant(
            "manifest_names_old_and_new", "a manifest names a replaced object and its successor", ("I20", "I21"),
            (
                (Manifest, "replace_segments", compaction_bugs.keep_what_is_replaced),
                (Manifest, "find_fault", compaction_bugs.find_no_fault),
            ), _with_cold_compaction,
        ),
        SimMutant(
            "replaced_too_early", "replaced objects go while readers may have the manifest before", ("I23",),
            ((Collector, "delete_replaced", compaction_bugs.delete_replaced_at_once),), _with_cold_compaction,
        ),
        SimMutant(
            "cold_boundary_forgotten", "keys without a place count as clean in the bucket", ("I26",),
            ((ColdCleaning, "_map_keys", compaction_bugs.count_all_as_mapped),), _with_cold_compaction,
        ),
        SimMutant(
            "cold_tombstone_too_early", "a tombstone goes with the next clean in the bucket", ("I26",),
            ((ColdCleaning, "_make_rules", compaction_bugs.forget_cold_retention),), _with_cold_compaction,
        ),
        SimMutant(
            "successor_lacks_a_batch", "the last piece of a run is not written", ("I26",),
            ((cold_cleaning, "split_batches", compaction_bugs.drop_last_piece),), _with_cold_compaction,
        ),
        SimMutant(
            "placed_by_process", "new topics have several replicas on a machine", ("I35",),
            ((topics, "place_replicas", bugs.place_by_process),), _with_machines,
        ),
        SimMutant(
            "moved_beside", "a replica moves to a machine that has another one", ("I35",),
            ((reassignment, "find_shared_machine", bugs.find_no_shared_machine),), _with_machines,
        ),
        SimMutant(
            "process_not_registered", "the metadata log does not name the machine of a broker", ("I35",),
            ((brokers, "register", bugs.register_without_process),), _with_machines,
        ),
        SimMutant(
            "machine_hears_itself", "a machine that is cut off takes its own replies for those of others", ("I19",),
            ((ControllerQueries, "other_addresses", bugs.count_all_as_far),), _with_machines,
        ),
        SimMutant(
            "chain_counts_log_end", "records count before the bucket has them", ("I5", "I6", "I9"),
            ((LeaderReplica, "_own_position", chain_bugs.count_log_end),), _with_chains,
        ),
        SimMutant(
            "chain_confirms_early", "a window confirms its records before its put", ("I5", "I6", "I9"),
            ((ChainWriter, "_put_window", chain_bugs.confirm_before_the_put),), _with_chains,
        ),
        SimMutant(
            "chain_slots_apart", "a window confirms its records although a slot before it is free",
            ("I5", "I6", "I9", "everything can be read", IN_SYNC),
            ((DecidedSlots, "decide", chain_bugs.confirm_each_slot),), _with_chains,
        ),
        SimMutant(
            "chain_ignores_fence", "a leader goes on after a fence", ("I5", "I6", "I9"),
            ((ChainWriter, "_give_up", chain_bugs.lead_on_after_fence),), _with_chains,
        ),
        SimMutant(
            "chain_not_fenced", "a chain is read without a fence", ("I5", "I6", "I9"),
            ((ChainTakeover, "_put_fence", chain_bugs.read_without_fence),), _with_chains,
        ),
        SimMutant(
            "chain_not_read", "a leader takes its own log for whole", ("I9",),
            ((become_leader, "append_from_chains", chain_bugs.keep_local_log),), _with_chains,
        ),
        SimMutant(
            "chain_of_last_only", "the metadata log names the chain of the last leader only", ("I9", "I38"),
            ((partition_transitions, "_add_chain", chain_bugs.read_last_chain_only),), _with_chains,
        ),
        SimMutant(
            "chain_trimmed_early", "windows go although segments lack their records", ("I38",),
            ((ChainTrimming, "first_needed", chain_bugs.trim_all_decided),), _with_chains,
        ),
        SimMutant(
            "chain_forgotten", "an owner forgets who needs its chain", ("I38",),
            ((chain_deletion, "names_chain", chain_bugs.forget_at_each_look),), _with_chains,
        ),
        SimMutant(
            "chain_kept_by_name", "a topic counts as in the bucket after it has left", ("I9", "I10"),
            ((partition_transitions, "change_flush", chain_bugs.keep_guarantee),), _with_chain_changes,
        ),
        SimMutant(
            "chain_begins_at_end", "a leader takes all that it finds for stored",
            ("I5", "I6", "I9", "I10", "every reader reads to the end"),
            ((ChainWriter, "add", chain_bugs.start_with_all),), _with_chain_changes,
        ),
        SimMutant(
            "moved_logs_are_not_named", "a process does not learn which logs moved to it", ("I5", IN_SYNC),
            ((log_mover, "encode_adopted", bugs.adopt_nothing),), _with_process_changes,
        ),
        SimMutant(
            "giver_starts_first", "a process runs before the one that took its logs has said so", ("I5", IN_SYNC),
            ((processes, "find_predecessors_on", bugs.find_no_predecessor),), _with_process_changes,
        ),
        SimMutant(
            "killed_process_gives_logs", "logs move from a process that did not stop cleanly", ("I5", IN_SYNC),
            ((processes, "find_obstacle", bugs.find_no_obstacle),), _with_process_changes,
        ),
        SimMutant(
            "compact_only_expires", "retention takes what only compaction may", ("I22",),
            ((retention, "total_limits", compaction_bugs.expire_by_any_policy),), _with_compaction,
        ),
    )
}  # fmt: skip


FIRST_SEEDS = {
    "chain_counts_log_end": 0,
    "chain_confirms_early": 0,
    "chain_slots_apart": 18,
    "chain_ignores_fence": 2,
    "chain_not_fenced": 0,
    "chain_not_read": 0,
    "chain_of_last_only": 0,
    "chain_trimmed_early": 0,
    "chain_forgotten": 11,
    "chain_kept_by_name": 0,
    "chain_begins_at_end": 13,
    "moved_logs_are_not_named": 1,
    "giver_starts_first": 0,
    "killed_process_gives_logs": 13,
    "process_not_registered": 0,
    "moved_beside": 0,
    "placed_by_process": 0,
    "machine_hears_itself": 2,
    "round_after_rebalance": 0,
    "marked_after_rebalance": 0,
    "marked_before_reply": 0,
    "reset_not_committed": 0,
    "tiers_searched_apart": 1,
    "duplicate_after_failover": 0,
    "sequences_lost": 0,
    "key_forgotten_by_failover": 2,
    "key_forgotten_at_load": 2,
    "above_high_watermark": 5,
    "manifest_first": 0,
    "named_deleted": 0,
    "equal_epochs": 0,
    "lost_reply": 5,
    "zombie_controller": 1,
    "answers_at_once": 1,
    "old_generation": 1,
    "given_before_free": 0,
    "revoked_unasked": 0,
    "old_member_epoch": 1,
    "sessions_end_with_coordinators": 0,
    "slot_reuse": 4,
    "r1_keeps_leading": 1,
    "r3_moves_below": 0,
    "removed_within_epoch": 0,
    "local_delete_first": 0,
    "retention_too_greedy": 2,
    "deletion_past_proposed": 0,
    "below_cold_end": 16,
    "no_epochs": 7,
    "rot_is_whole": 0,
    "nobody_joins": 0,
    "files_left": 0,
    "streams_left": 0,
    "groups_lost": 0,
    "served_by_name": 2,
    "fence_skipped": 2,
    "refused_marker_counts": 5,
    "followed_transactions_forgotten": 2,
    "past_open_transactions": 2,
    "unverified": 2,
    "aborted_unsorted": 2,
    "any_marker_completes": 0,
    "aborted_not_listed": 2,
    "aborted_cut_at_seam": 2,
    "aborted_offsets_commit": 2,
    "offsets_before_commit": 2,
    "markers_of_offsets_not_loaded": 2,
    "older_offset_outlives": 0,
    "committed_offsets_drop": 2,
}
"""By mutant: a seed that shows it. Mutants that adjust a run alike share one. Most others have a scenario instead
(`scenarios.py`); those that a rule over one step shows have both. The quickest mutant of a rule stands first: `make
test` runs that one."""
