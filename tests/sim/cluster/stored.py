"""Stored bytes at the end, read past all brokers: every replica's log on its disk, and every object that a manifest
names, compared with the model of committed records (I3, I5, I20, I21, I23)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.sim.cluster.disk_logs import batches_of
from tests.sim.cluster.expiry import LogBatch
from tests.sim.cluster.observer import Finding
from tiered.cold.layout import parse_key
from tiered.ids import PartitionId
from tiered.upkeep.object_deletion import COLLECT_SECONDS
from tiered.upkeep.tiering import UPLOAD_IN_FLIGHT_MS

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

OVERDUE_NS = round((COLLECT_SECONDS + 5) * 1e9)
"""The interval of the check, the grace time of a run, and a margin."""

SWEEP_NS = (UPLOAD_IN_FLIGHT_MS + 60_000) * 1_000_000
"""Time until a sweep that is due after a lost reply has run, with the pauses between attempts."""


def check_stored(run: ClusterRun) -> Iterator[Finding]:
    """Checks all replicas and all cold records."""
    for topic in run.model.image.topics.values():
        for number, partition in enumerate(topic.partitions):
            partition_id = PartitionId(topic.topic_id, number)
            if not run.model.is_modelled(partition_id):
                continue
            copies = run.model.copies_of(partition_id)
            for node in partition.replicas:
                disk, directory = run.world.hosts[node].machine.disk, f"{topic.name}-{number}"
                start, batches = run.model.read_disk_log(partition_id, disk, directory)
                end = batches[-1].last + 1 if batches else start
                name = f"{copies.name} on b{node}"
                above = [each for each in batches if each.last >= copies.log_start]  # nobody asks for what lies below
                yield from check_same_batches(name, "I5", above, copies.committed)
                yield from check_contiguous(name, batches)
                if node in partition.isr and end < copies.committed_end:
                    yield Finding("I5", f"{name} ends at {end}, committed is up to {copies.committed_end}")
                if node in partition.isr and start > max(copies.cold_end, copies.log_start):
                    yield Finding("I21", f"{name} starts at {start}, cold is up to {copies.cold_end}")
    yield from check_cold(run)
    yield from check_overdue(run)


def check_cold(run: ClusterRun) -> Iterator[Finding]:
    """Checks every live segment of every manifest."""
    objects = run.world.bucket.objects
    for manifest in run.model.manifests():
        if not run.model.is_modelled(manifest.partition_id):
            continue
        copies, at = run.model.copies_of(manifest.partition_id), -1
        log = run.model.cold_log(manifest.partition_id)
        for entry in run.model.segments(manifest):
            stored = objects.get(entry.key)
            if stored is None:
                yield Finding("I23", f"{copies.name}: {entry.key} is named and not there")
                continue
            if log is not None:
                for rule, what in run.model.cold_cleans.check_object(log, entry):
                    yield Finding(rule, what)
                at = entry.next_offset
                continue
            held = [each for each in batches_of(stored.data[: entry.log_bytes], check_crc=True) if each.last >= at]
            yield from check_same_batches(entry.key, "I20", held, copies.committed)
            yield from check_contiguous(entry.key, held)
            if not held or (held[0].base, held[-1].last + 1) != (entry.base_offset, entry.next_offset):
                yield Finding("I20", f"{copies.name}: {entry.key} does not hold what it is named for: {entry}")
            if at not in (-1, entry.base_offset):
                yield Finding("I21", f"{copies.name}: cold goes on at {entry.base_offset} after {at}")
            at = entry.next_offset


def check_overdue(run: ClusterRun) -> Iterator[Finding]:
    """I23: an expired object is deleted after its grace time, if the leader that expired it still leads; if requests
    may get lost, by the next sweep. (That is later than the end of most runs: `rebuilding` waits for it.)"""
    limit_ns = OVERDUE_NS
    if run.options.worst_fault or any(kind.startswith("bucket") for kind in run.options.troubles):
        if "clock_jump" in run.options.troubles:
            return  # a sweep is due by a wall clock
        limit_ns += SWEEP_NS
    for key in run.model.unreferenced():
        name = parse_key(key)
        topic = run.model.image.topics_by_id.get(name.partition.topic_id) if name is not None else None
        if name is None or topic is None:
            continue
        gone = run.model.expiry_of(name.partition, name.base_offset, key)
        epoch = topic.partitions[name.partition.partition].leader_epoch
        if gone is not None and gone.epoch == epoch and run.loop.now_ns - gone.at_ns > limit_ns:
            yield Finding("I23", f"{key} has expired under the leader of today, {gone}, and is there still")


def check_same_batches(
    name: str, rule: str, batches: Sequence[LogBatch], committed: Mapping[int, LogBatch]
) -> Iterator[Finding]:
    """Reports a log that differs from the committed records; above them it may have any records."""
    if not committed:
        return
    newest = max(committed)
    here = {batch.base: batch for batch in batches if batch.base <= newest}
    first = min(here, default=newest + 1)
    wrong = [batch for base, batch in here.items() if committed.get(base, batch) != batch]
    strange = [batch for base, batch in here.items() if base not in committed and base > min(committed)]
    missing = [batch for base, batch in committed.items() if first < base <= max(here, default=-1) and base not in here]
    for what, found in (("differs", wrong), ("is not committed", strange), ("is missing", missing)):
        if found:
            yield Finding(rule, f"{name}: {found[0]} {what}")


def check_contiguous(name: str, batches: Sequence[LogBatch]) -> Iterator[Finding]:
    """I3: each batch begins at the end of the one before."""
    for one, other in pairwise(batches):
        if other.base != one.last + 1:
            yield Finding("I3", f"{name}: {other} follows on {one}")
