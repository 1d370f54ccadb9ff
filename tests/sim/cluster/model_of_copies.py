"""Reference model of all copies of one partition, of its committed records, and of the rules that bind them.

The model learns of each event (a batch is appended, a log cut, a high watermark moves, the metadata log changes the
ISR, a machine loses power) and reports at once which rule of docs/internals/invariants.md it breaks: I3, I5 to I10,
I16, I22, R1, and R3 to R5. It knows more than any broker: the true high watermark, and the true content of every disk.
Pure; `observer.py` and `model.py` feed it.

Durability has a budget: a committed record may be lost only from the moment on at which neither a member of ISR or ELR
nor the bucket has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from tests.sim.cluster.expiry import LogBatch, Retention, find_early_expiry
from tests.sim.cluster.one_copy import CopyModel
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import PartitionImage

COPIED_AGAIN = "copied again"
"""Reason of a follower that ends its log where a transaction began, because the leader's cleaner may have taken the
marker."""
ReportFinding = Callable[[str, str], None]
"""Reports a broken rule: its name and the event."""


class ModelLoss(NamedTuple):
    """A loss: from `at_ns` on no copy has the committed records from `from_offset` on. They may be gone."""

    at_ns: int
    from_offset: int


class ModelOfCopies:
    """The copies of one partition. Nodes are numbers; `now` returns the time of a loss."""

    def __init__(self, name: str, report: ReportFinding, now: Callable[[], int]) -> None:
        self.name = name
        self.copies: dict[int, CopyModel] = {}
        self.committed: dict[int, LogBatch] = {}
        self.committed_end = 0
        self.cold_end = 0
        self.log_start = 0
        self.losses: list[ModelLoss] = []
        self.lost_tail_bytes = 0
        """Bytes above the committed records that some leader may have counted and that are gone."""
        self.state: PartitionImage | None = None
        self.parted = -1
        """The epoch of the last leader that was elected uncleanly, where the topic allows it."""
        self._chained_end = 0
        """All records below are in segments or in the chains that the metadata log names, since the topic left that
        mode."""
        self.has_spare = False
        """True once a broker took the place of a replica: none was left, and the bucket has all records."""
        self._lossy_epoch = -1
        """The epoch of the last leader that began without all committed records. An earlier leader may still serve what
        is lost."""
        self.parted_uncold = -1
        """The same, of leaders that were elected while nothing was cold. A manifest keeps where a log starts."""
        self._cold_since_ns: int | None = None
        self._diverged_reads: list[ModelLoss] = []
        """Records that leaders committed after an unclean election that they had not yet learned of."""
        self._lost_from: int | None = None
        self._leaders: dict[int, tuple[int, str]] = {}
        self._watermarks: dict[int, int] = {}
        self._followed_epochs: dict[int, int] = {}
        self._moved: dict[int, tuple[int, int]] = {}
        """By the process that took the log: the process that gave it, and the last life of the one that took it."""
        self._report = report
        self._now = now

    def copy(self, node: int) -> CopyModel:
        return self.copies.setdefault(node, CopyModel())

    # -- one log ------------------------------------------------------------------------------------------------------

    def on_opened(self, node: int, start: int, batches: Sequence[LogBatch]) -> None:
        """A start opened this log on its disk. Everything that the process had written is still there; after a power
        cut all committed records, if the copy counted only fsynced ones."""
        copy = self.copy(node)
        copy.open_count += 1
        copy.began_behind_cold = False
        self._advance_agreed(copy)
        end = batches[-1].last + 1 if batches else start
        counts = self.state is None or node in (*self.state.isr, *self.state.elr)
        is_deleted = copy.may_be_deleted and not batches and not counts
        reads_chains = self.state is not None and bool(self.state.chains) and self._leads(node)
        needs_no_disk = reads_chains and self.bucket_end >= self.committed_end
        if (
            copy.is_provable
            and not (copy.is_removed or copy.is_unopened or is_deleted or needs_no_disk)
            and end < (min(copy.agreed_end, self.committed_end) if copy.damaged_life >= 0 else copy.end)
        ):
            self._report("I5", f"{self.name}: a start of b{node} found {end}, its disk held up to {copy.end}")
        copy.replace(start, batches)
        copy.is_unopened = copy.may_be_deleted = False
        copy.is_removed = self.state is not None and node not in self.state.replicas
        self._advance_agreed(copy)
        self._update_losses()

    def on_append(self, node: int, batch: LogBatch) -> None:
        copy = self.copy(node)
        if batch.base != copy.end and (copy.batches or copy.end != copy.start):
            self._report("I3", f"{self.name}: b{node} writes {batch} at the end {copy.end}")
        if not copy.batches:
            copy.start = copy.agreed_end = batch.base
        copy.stopped_cleanly = False
        copy.batches.append(batch)
        copy.end = batch.last + 1

    def on_truncated(self, node: int, to: int, *, why: str) -> None:
        """A log ends at `to` from now on. I7: committed records are never cut away, unless they are lost anyway or
        cold, or the copy does not count. A copy that is to be `COPIED_AGAIN` counts only for ISR, ELR and elections."""
        copy = self.copy(node)
        self._advance_agreed(copy)
        copy.stopped_cleanly = copy.began_behind_cold = False
        gone = copy.batches[copy.index_at(to) :]
        kept = self._lost_from if self._lost_from is not None else self.committed_end
        elsewhere = self.bucket_end if why == "restart" and self._leads(node) else self.cold_end
        for batch in gone if self._is_relied_on(node, only_members=why == COPIED_AGAIN) else ():
            if self.committed.get(batch.base) == batch and max(elsewhere, self.log_start) <= batch.last < kept:
                self._report("I7", f"{self.name}: b{node} cuts the committed {batch} ({why}, to {to})")
                break
        self._count_lost_tail(copy)
        del copy.batches[len(copy.batches) - len(gone) :]
        copy.end = to
        copy.start = min(copy.start, to)
        copy.agreed_end = min(copy.agreed_end, to)
        self._update_losses()

    @property
    def bucket_end(self) -> int:
        """All committed records below are in segments or in chains that the metadata log names."""
        if self.state is None or not self.state.chains:
            return self.cold_end
        return max(self.cold_end, self.committed_end if self.state.is_in_bucket else self._chained_end)

    def _leads(self, node: int) -> bool:
        return self.state is not None and self.state.leader == node

    def _is_relied_on(self, node: int, *, only_members: bool) -> bool:
        """True if the copy of a broker counts. It does not count if the metadata log removed the broker and it still
        follows an earlier leader: it may hold records that were committed since and that the earlier leader lacks."""
        now = self.state
        if now is None or node in (*now.isr, *now.elr, *now.last_known):
            return True
        return not only_members and self._followed_epochs.get(node, now.leader_epoch) >= now.leader_epoch

    def on_log_reset(self, node: int, offset: int) -> None:
        """A log begins empty at `offset`: the records below are cold, or were never here."""
        self.on_truncated(node, min(offset, self.copy(node).start), why="restart")
        self.copy(node).replace(offset, ())

    def on_begun_behind_cold(self, node: int) -> None:
        """A log begins empty at the cold end, with the producer state and epochs that the bucket has."""
        self.copy(node).began_behind_cold = True

    def on_local_delete(self, node: int, start: int) -> None:
        """Local records below `start` are deleted. I22: they must be cold, or below the log start."""
        copy = self.copy(node)
        if start > max(self.cold_end, self.log_start, copy.start):
            self._report("I22", f"{self.name}: b{node} drops what is below {start}, cold is up to {self.cold_end}")
        copy.batches = copy.batches[copy.index_at(start) :]
        copy.start = max(copy.start, start)
        copy.agreed_end = max(copy.agreed_end, copy.start)

    def on_damage(
        self,
        node: int,
        start: int,
        batches: Sequence[LogBatch],
        life: int,
        *,
        is_provable: bool,
        is_proof_unknown: bool = False,
        is_partly_synced: bool = False,
        is_torn: bool = False,
        is_lost: bool = False,
        is_marked_clean: bool = False,
    ) -> None:
        """A power cut or worse left exactly this on the disk. The next start can prove the log if it `is_provable`; if
        `is_proof_unknown` it may or may not. The damage ended the machine's `life`. `is_partly_synced`: only some
        records were fsynced before they counted, because the topic has another `flush` setting now; the log may count
        if nothing is missing. `is_torn`: the start may delete the log with all records, for its topic id is torn.
        `is_lost`: the disk is another one, on which nothing proves a log, whatever came before. `is_marked_clean`: the
        mark of a clean stop is there, and proves a log that no start has opened: it had no record to lose."""
        copy = self.copy(node)
        end, is_short = copy.end, is_torn and bool(copy.batches)
        self._count_lost_tail(copy)
        self._advance_agreed(copy)
        copy.shown_end = 0 if copy.is_unopened else copy.agreed_end
        copy.replace(start, batches)
        # An error of the disk before this damage, which no start has answered since, is not undone by it.
        copy.is_proof_unknown = not is_lost and (
            is_proof_unknown
            or is_partly_synced
            or (copy.stopped_cleanly and not is_provable and copy.end == end)
            or (is_marked_clean and not copy.open_count)
            or (copy.is_proof_unknown and copy.damaged_life >= 0)
        )
        if copy.is_provable:  # what could not be shown before cannot be now
            is_short = is_short or copy.end < end
            copy.unproved_life = life
            copy.is_provable = is_provable or (copy.is_proof_unknown and not (is_partly_synced and is_short))
        copy.damaged_life, copy.kept_synced, copy.is_unopened = life, is_provable, not copy.is_provable
        copy.lossy_life = copy.lossy_life if is_provable else life
        copy.suspect = copy.suspect or not is_provable
        copy.may_be_deleted = copy.may_be_deleted or is_torn
        self._advance_agreed(copy)
        self._update_losses()

    def on_death_while_suspect(self, node: int, life: int, *, has_no_proof: bool) -> None:
        """The process ended before it could trust the directory (`LossReporter.directory_trusted`). The next start
        suspects again every log that this start suspected, though the copy may have joined the ISR meanwhile.
        `has_no_proof`: nothing on its disk proves the log, because there was no room for a note, or because the log is
        new and not synced before it counts."""
        copy = self.copy(node)
        if (copy.suspect or has_no_proof) and copy.suspect_after < 0:
            copy.suspect_after = life

    def on_directory_trusted(self, node: int) -> None:
        """The broker trusts the directory from now on."""
        copy = self.copy(node)
        copy.suspect, copy.suspect_after = False, -1

    def on_flush_changed(self) -> None:
        """The topic has another value of `flush` now: copies with earlier damage that are not back yet may be trusted
        by either value."""
        for copy in self.copies.values():
            if copy.damaged_life >= 0:
                copy.is_proof_unknown = True

    def tail_bytes(self) -> int:
        """Returns how many bytes any leader may count above the committed records, at most."""
        return max([self.lost_tail_bytes, *map(self._tail_bytes_of, self.copies.values())])

    def _tail_bytes_of(self, copy: CopyModel) -> int:
        return sum(batch.size for batch in copy.batches[copy.index_at(self.committed_end) :])

    def _count_lost_tail(self, copy: CopyModel) -> None:
        self.lost_tail_bytes = max(self.lost_tail_bytes, self._tail_bytes_of(copy))

    def on_clean_stop(self, node: int) -> None:
        """The broker notes that it has stopped cleanly."""
        self.copy(node).stopped_cleanly = True

    def on_moved(self, giver: int, receiver: int, life: int) -> None:
        """The log moved to another process of its machine, whose last life was `life`, while neither ran. It is the
        copy of both until the metadata log says so too."""
        if giver in self.copies:
            self.copies[receiver] = self.copies[giver]
            self._moved[receiver] = giver, life

    def _apply_moves(self, replicas: Collection[int]) -> None:
        """Leaves each log that has moved to the process that the metadata log names."""
        for receiver, (giver, life) in list(self._moved.items()):
            if giver in replicas:
                continue
            del self._moved[receiver]
            del self.copies[giver if receiver in replicas else receiver]
            if receiver in replicas:
                copy = self.copies[receiver]
                for name in ("damaged_life", "unproved_life", "suspect_after", "lossy_life"):
                    if getattr(copy, name) >= 0:
                        setattr(copy, name, life)

    def on_cold_end(self, end: int) -> None:
        """The bucket has all records below `end`, from the log start on."""
        if end and not self.cold_end:
            self._cold_since_ns = self._now()
        self.cold_end = max(self.cold_end, end)

    def on_log_start(
        self,
        offset: int,
        retentions: Sequence[Retention],
        now_ms: int,
        max_clock_skew_ms: int,
        requested_start: int = 0,
        remains_of: Callable[[LogBatch], LogBatch | None] = lambda batch: batch,
    ) -> None:
        """The log starts here from now on. I22: a recent configuration of the topic allowed the deletion, or a client
        requested the deletion of all records below `requested_start`. `remains_of` returns what compaction has left of
        a batch."""
        if offset <= self.log_start:
            return
        above = max(self.log_start, requested_start)
        known = [left for each in self.committed.values() if each.last >= above and (left := remains_of(each))]
        tail_bytes = self.tail_bytes()
        early: list[LogBatch] = []
        for each in retentions:
            early = list(
                find_early_expiry(
                    known, offset, each, tail_bytes=tail_bytes, now_ms=now_ms, max_clock_skew_ms=max_clock_skew_ms
                )
            )
            if not early:
                break
        if early:
            self._report(
                "I22", f"{self.name} starts at {offset}, was at {self.log_start}: {early[-1]} to {early[0]} went too"
                f" early, kept is {[*retentions]}",
            )  # fmt: skip
        self.log_start = offset

    # -- leaders ------------------------------------------------------------------------------------------------------

    def on_leader(self, node: int, incarnation: str, epoch: int, end: int, high_watermark: int = 0) -> None:
        """I8: one leader per epoch. I9: an elected leader has all committed records, unless they are lost. R5: no epoch
        begins below the cold end. I6: the `high_watermark` that the leader knows from before is committed. A record
        that was lost in between is committed again, if the leader had it all the time."""
        known = self._leaders.setdefault(epoch, (node, incarnation))
        if known != (node, incarnation):
            self._report("I8", f"{self.name}: b{node} ({incarnation}) leads epoch {epoch}, and so does {known}")
        copy = self.copy(node)
        self._advance_agreed(copy)
        self.on_follow(node, epoch)
        if end < self.cold_end and not self._is_deposed(epoch):
            self._report("R5", f"{self.name}: b{node} leads epoch {epoch} from {end}, cold is up to {self.cold_end}")
        if copy.agreed_end < self.committed_end and not self._is_deposed(epoch):
            lacks = max(copy.agreed_end, self.cold_end)
            if lacks < self.committed_end:
                self._update_losses()
                if self._lost_from is None or self._lost_from > lacks:
                    self._report(
                        "I9", f"{self.name}: b{node} leads epoch {epoch} from {end}, committed is up to"
                        f" {self.committed_end} and it has only up to {lacks}",
                    )  # fmt: skip
                self._lose_from(lacks)
                self._lossy_epoch = epoch
        if not self._is_deposed(epoch):
            self._lost_from = None
            if high_watermark > self.committed_end:
                if not self.losses:
                    end = self.committed_end
                    self._report("I6", f"{self.name}: b{node} begins at high watermark {high_watermark}, not at {end}")
                self._commit(copy, high_watermark)

    def has_leader_begun(self, epoch: int) -> bool:
        """True if the leader that was elected for that epoch has acted on it."""
        return epoch in self._leaders

    def on_follow(self, node: int, epoch: int) -> None:
        """I16: a follower that has followed a leader follows none of an earlier epoch any more."""
        newest = self._followed_epochs.get(node, epoch)
        if epoch < newest:
            self._report("I16", f"{self.name}: b{node} takes from the leader of epoch {epoch}, after epoch {newest}")
        self._followed_epochs[node] = max(epoch, newest)

    def _is_deposed(self, epoch: int) -> bool:
        return self.state is not None and self.state.leader_epoch > epoch

    def _lose_from(self, offset: int) -> None:
        """Ends the committed records at `offset`: the rest is lost, and its offsets are assigned again."""
        for base in [base for base, batch in self.committed.items() if batch.last >= offset]:
            self.lost_tail_bytes += self.committed.pop(base).size
        self.losses.append(ModelLoss(self._now(), offset))
        self.committed_end = offset
        for copy in self.copies.values():
            copy.agreed_end = min(copy.agreed_end, max(offset, copy.start))

    def on_high_watermark(
        self,
        node: int,
        epoch: int,
        high_watermark: int,
        in_sync: Collection[int],
        min_isr: int,
        *,
        is_controller: bool = False,
    ) -> None:
        """The high watermark of a leader moved. I6: it never goes back within an epoch, moves only while enough
        replicas are in sync, and only over records that all of them have. The leader may still count a replica that the
        metadata log has removed since, and need not be right about it. I5: a committed record stays as it is.
        `is_controller`: the leader considers itself the active controller, so that it needs no contact with another one
        (R6). Records that it commits after an unclean election or a loss that it does not know of are lost. Any other
        leader acknowledges no acks=all record then (R6), and still serves records that it took with acks=1."""
        before = self._watermarks.get(epoch, 0)
        if high_watermark < before:
            self._report("I6", f"{self.name}: high watermark of epoch {epoch} goes from {before} to {high_watermark}")
        self._watermarks[epoch] = max(before, high_watermark)
        copy = self.copy(node)
        if high_watermark > copy.end:
            self._report("I6", f"{self.name}: high watermark {high_watermark} is beyond the end {copy.end} of b{node}")
        self._advance_agreed(copy)
        if epoch < max(self.parted, self._lossy_epoch) <= max(self._leaders):
            self._diverged_reads.append(ModelLoss(self._now(), before))
            if is_controller:
                self.losses.append(ModelLoss(self._now(), before))
            return  # another one leads, who need not have had this, and nobody waits for who led before
        if copy.agreed_end < min(high_watermark, self.committed_end) and self._lost_from is None:
            self._report(
                "I5", f"{self.name}: b{node} commits {high_watermark} under epoch {epoch}, but its log parts at"
                f" {copy.agreed_end} from what is committed up to {self.committed_end}",
            )  # fmt: skip
        self._commit(copy, high_watermark)
        if epoch < self.parted:
            self._update_losses()
        if len(in_sync) < min_isr:
            self._report(
                "R3", f"{self.name}: high watermark moves to {high_watermark} with {sorted(in_sync)} in sync,"
                f" min.insync.replicas is {min_isr}",
            )  # fmt: skip
        for each in sorted(self._required_replicas(node, epoch, in_sync)):
            other = self.copy(each)
            self._advance_agreed(other)
            if other.is_provable and other.agreed_end < high_watermark and self._lost_from is None:
                self._report(
                    "I6", f"{self.name}: high watermark {high_watermark} of b{node}, but b{each} of the in-sync"
                    f" {sorted(in_sync)} has only up to {other.agreed_end}",
                )  # fmt: skip

    def on_follower_watermark(self, node: int, high_watermark: int) -> None:
        """A follower considers records below `offset` committed, and serves them to nearby consumers (KIP-392). I6:
        they are committed. I5: the follower has the committed records. It may learn of a loss later."""
        copy = self.copy(node)
        self._advance_agreed(copy)
        sure = min(self.committed_end, copy.agreed_end)
        if high_watermark > sure and not self.may_be_gone(sure, 0):
            self._report(
                "I6" if high_watermark > self.committed_end else "I5", f"{self.name}: follower b{node} serves up to"
                f" {high_watermark}, committed is up to {self.committed_end}, of which it has up to {copy.agreed_end}",
            )  # fmt: skip

    def _required_replicas(self, node: int, epoch: int, in_sync: Collection[int]) -> set[int]:
        """Returns the replicas that a high watermark must wait for: for a leader in force, all that the metadata log
        names (R3)."""
        if self.state is None:
            return {*in_sync}
        said = {node, *self.state.isr}
        return said if self.state.leader_epoch == epoch else said & {*in_sync}

    def _commit(self, copy: CopyModel, upto: int) -> None:
        if self.committed_end < copy.start:
            self.committed_end = copy.start
        first = copy.index_at(self.committed_end)
        if first and self.committed_end <= self.log_start and copy.batches[first - 1].last >= self.committed_end:
            first -= 1  # the log starts in the middle of this batch, and only its end counts
        for batch in copy.batches[first:]:
            if batch.last >= upto:
                break
            self.committed[batch.base] = batch
            self.committed_end = batch.last + 1

    # -- the metadata log ---------------------------------------------------------------------------------------------

    def on_partition_change(
        self,
        new: PartitionImage,
        live: Collection[int],
        lives: Mapping[int, int],
        isr_within_slot: Collection[int] = (),
        *,
        unclean: bool = False,
    ) -> None:
        """Applies a partition of the metadata log. `live` are the brokers that may lead, `lives` says of each which of
        its processes has registered, `isr_within_slot` has the brokers that were in sync at any time within this slot.
        `unclean`: the topic allows any replica to lead; records that the leader lacks are lost from then on."""
        if self.state is not None and self.state.is_in_bucket and not new.is_in_bucket:
            self._chained_end = self.committed_end
        if self.state is not None and self.state.is_in_bucket and new.leader not in (NO_LEADER, *self.state.replicas):
            self.has_spare = True
        old, self.state = self.state, new
        self._apply_moves(new.replicas)
        if unclean and old is not None and self._is_unclean(old, new, lives, isr_within_slot):
            self.parted = new.leader_epoch
            if not self.cold_end:
                self.parted_uncold = new.leader_epoch
            self._update_losses()
        members = sorted({*new.isr, *new.elr})
        if new.leader not in (NO_LEADER, *new.isr):
            self._report("I10", f"{self.name}: the leader {new.leader} is not in sync: {new}")
        if not {*new.isr} <= {*live}:  # the last one too: it is eligible then, and nobody leads
            self._report("I10", f"{self.name}: who is fenced or has stopped is in sync: {new}, live {sorted(live)}")
        if {*new.isr} & {*new.elr} or not {*members} <= {*new.replicas}:
            self._report("I10", f"{self.name}: isr and elr are no disjoint subsets of the replicas: {new}")
        is_in_epoch = old is not None and new.leader != NO_LEADER and new.leader_epoch <= old.leader_epoch
        if old is not None and is_in_epoch and not {*old.replicas} <= {*new.replicas}:
            self._report("R3", f"{self.name}: a replica leaves within a leader epoch: {old}, {new}")
        for node in new.elr:
            copy = self.copy(node)
            joined = old is not None and node not in old.isr and node not in old.elr
            if joined and 0 <= copy.damaged_life < lives.get(node, 0) - (node not in isr_within_slot):
                copy.is_provable, copy.damaged_life, copy.is_proof_unknown = (
                    True,
                    -1,
                    False,
                )  # within one slot it joined, and left or came back whole
            elif joined and node in isr_within_slot and copy.lossy_life < lives.get(node, 0) <= copy.damaged_life:
                copy.is_provable = copy.kept_synced  # it was hurt when it had joined and left, and no slot said so
        for node in members:
            self._check_member(node, new, lives)
        if old is not None:
            suspected = {node for node, copy in self.copies.items() if 0 <= copy.suspect_after < lives.get(node, 0)}
            joined_in = {node: life - (node in isr_within_slot) for node, life in lives.items()}
            came_back = {node for node in isr_within_slot if 0 <= self.copy(node).damaged_life < lives.get(node, 0)}
            hurt_since = {node for node, copy in self.copies.items() if copy.damaged_life >= lives.get(node, 0)}
            self._check_step(old, new, members, joined_in, suspected, came_back, hurt_since)
        for node, copy in self.copies.items():
            if node in self._moved:
                continue
            copy.is_removed = (copy.is_removed or node not in new.replicas) and node not in new.isr
        if old is not None and old.is_in_bucket and new.leader not in (NO_LEADER, *old.replicas):
            self.copy(new.leader).is_removed = True  # a spare drops what it had of the partition
        for node in new.isr:
            copy = self.copy(node)
            if 0 <= copy.damaged_life < lives.get(node, 0):
                copy.is_provable, copy.damaged_life, copy.is_proof_unknown = True, -1, False
            elif (
                copy.damaged_life == lives.get(node, 0) and copy.kept_synced and old is not None and node not in old.isr
            ):
                copy.is_provable = True  # it had joined when it was hurt, though nobody had written so yet
        self._update_losses()

    def _is_unclean(
        self, old: PartitionImage, new: PartitionImage, lives: Mapping[int, int], isr_within_slot: Collection[int]
    ) -> bool:
        """True if the new leader was not eligible before, or lost its eligibility when it came back without proof. It
        may be fenced within the slot of its election: it is eligible then, and nobody leads."""
        if new.loss == old.loss or new.leader_epoch <= old.leader_epoch:
            return False
        fenced = [node for node in new.elr if node in isr_within_slot]
        for node in [new.leader] if new.leader != NO_LEADER else fenced:
            copy = self.copy(node)
            returned = not copy.is_provable and copy.unproved_life < lives.get(node, 0)  # and may be hurt again by now
            if returned or node not in (*old.isr, *old.elr):
                return True
        return False

    def _check_member(self, node: int, new: PartitionImage, lives: Mapping[int, int]) -> None:
        """I10, R1: a member of ISR or ELR has all committed records; a broker that came back unproved is in neither."""
        copy = self.copy(node)
        self._advance_agreed(copy)
        returned = not copy.is_provable and copy.damaged_life < lives.get(node, 0)
        if returned and node in new.elr and not copy.is_proof_unknown:
            self._report("R1", f"{self.name}: b{node} came back unproved and is eligible: {new}")
        # Who was in sync with no other leader reads chains before it leads.
        has_stored = self.bucket_end if node == new.leader or node in new.elr else self.cold_end
        whole = max(copy.agreed_end, has_stored) >= self.committed_end
        if not whole and self._lost_from is None and (copy.is_provable or (returned and node != new.leader)):
            self._report(
                "I10", f"{self.name}: b{node} has up to {copy.agreed_end} of {self.committed_end} committed: {new}"
            )

    def _check_step(
        self,
        old: PartitionImage,
        new: PartitionImage,
        members: list[int],
        lives: Mapping[int, int],
        suspects: Collection[int],
        returned: Collection[int],
        hurt_since: Collection[int],
    ) -> None:
        if new.leader_epoch < old.leader_epoch or (
            new.leader_epoch == old.leader_epoch and NO_LEADER != new.leader != old.leader != NO_LEADER
        ):
            self._report("I8", f"{self.name}: from {old} to {new}")
        gone = sorted({*old.isr, *old.elr} - {*members})
        left = [
            node
            for node in gone
            if self.has_all_committed(node) and not self.copy(node).is_proof_unknown and node not in suspects
        ]
        # Damage that nobody can know of yet is a loss of its own: the budget says so. (`lives`: those in which they may
        # have joined within this slot.)
        relied_on = [
            node
            for node in members
            if self.has_all_committed(node)
            or self.copy(node).is_proof_unknown
            or self.copy(node).damaged_life >= lives.get(node, 0)
        ]
        relied_on += returned  # within this slot, and until then whole for all that others knew
        # A broker that joins has it by the word of the leader that leaves in the same step (the end of a move).
        relied_on += [
            node for node in new.isr if node not in old.isr and self.copy(node).agreed_end >= self.committed_end
        ]
        unclean_epoch = self.parted == new.leader_epoch
        if left and self.committed_end > self.bucket_end and not relied_on and not unclean_epoch:
            self._report("I10", f"{self.name}: the last whole copies {left} left isr and elr: {old}, then {new}")
        nobody_was = not old.isr and not old.elr and self._lost_from is not None
        # The replica that returned last may have been eligible before this step. Then the loss shows the last resort.
        told = new.loss is not None and new.loss.leader_epoch == new.leader_epoch > old.leader_epoch
        known = (*old.isr, *old.elr, *old.last_known)
        if new.leader != NO_LEADER and known and (nobody_was or told) and not unclean_epoch:
            ends = {node: self.copy(node).agreed_end for node in (*known, new.leader)}
            if new.leader in hurt_since:  # nobody can know of that damage yet
                ends[new.leader] = self.copy(new.leader).shown_end
            sure = max(end for node, end in ends.items() if node == new.leader or not self.copy(node).may_be_deleted)
            if ends[new.leader] < sure > self.bucket_end:
                self._report("R4", f"{self.name}: b{new.leader} is elected though others have more: {ends} of {old}")

    def has_all_committed(self, node: int) -> bool:
        """True if the copy has all committed records and can prove it."""
        copy = self.copy(node)
        self._advance_agreed(copy)
        return copy.is_provable and copy.agreed_end >= self.committed_end

    # -- the budget ---------------------------------------------------------------------------------------------------

    def _advance_agreed(self, copy: CopyModel) -> None:
        """Advances to the offset where the copy diverges from the committed records; records below the log start do not
        count."""
        committed, copy.agreed_end = self.committed, max(copy.agreed_end, min(self.log_start, copy.end))
        if copy.agreed_end >= min(copy.end, self.committed_end):
            return
        first = max(copy.index_at(copy.agreed_end) - 1, 0)  # the log may start in the middle of that batch
        for batch in [each for each in copy.batches[first:] if each.last >= copy.agreed_end]:
            if committed.get(batch.base) != batch:
                break
            copy.agreed_end = batch.last + 1

    def _update_losses(self) -> None:
        """Notes a loss if no replica that may lead holds all committed records."""
        if self.state is None or self.committed_end <= self.bucket_end:
            return
        best = self.bucket_end
        for node in (*self.state.isr, *self.state.elr):
            copy = self.copy(node)
            self._advance_agreed(copy)
            best = max(best, copy.agreed_end)
        if best < self.committed_end and (self._lost_from is None or best < self._lost_from):
            self._lost_from = best
            self.losses.append(ModelLoss(self._now(), best))

    def may_have_diverged(self, offset: int, since_ns: int) -> bool:
        """True if, since then, a reader may have got another record at this offset, or a record that is lost by now."""
        apart = any(loss.from_offset <= offset and loss.at_ns >= since_ns for loss in self._diverged_reads)
        return apart or self.may_be_gone(offset, since_ns)

    def may_be_gone(self, offset: int, since_ns: int) -> bool:
        """True if a record that was sent at `since_ns` and got this offset may be lost by now."""
        return any(loss.from_offset <= offset and loss.at_ns >= since_ns for loss in self.losses)

    def may_have_lost_start(self, offset: int) -> bool:
        """True if this log start may be gone together with all records above it. A disk that is lost takes both, while
        nothing of the partition is cold; after that, a manifest keeps the log start."""
        until = self._cold_since_ns
        return any(loss.from_offset <= offset and (until is None or loss.at_ns <= until) for loss in self.losses)
