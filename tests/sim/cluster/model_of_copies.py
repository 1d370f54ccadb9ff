"""All copies of one partition, what is committed of them, and the rules that bind them: a reference model.

It is told what happens (a batch is appended here, a log cut there, a high watermark moves, the metadata log says who is
in sync, a machine loses power) and says at once which rule of docs/INVARIANTS.md that breaks: I3, I5 to I10, I16, I22,
R1, and R3 to R5. It knows more than any broker: the true high watermark, the true content of every disk. Pure; whoever
observes stands in `witness.py` and `truth.py`.

Durability is conditional on a budget: a committed record may be lost only from the moment on at which no member of ISR
or ELR, and not the bucket either, kept it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from tests.sim.cluster.expiry import Batch, Keeps, too_early
from tests.sim.cluster.one_copy import Copy
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import PartitionImage

Red = Callable[[str, str], None]
"""Hears of a broken rule: its name, and what happened."""


class Loss(NamedTuple):
    """From `at_ns` on nothing holds the committed records from `from_offset` on: they may be gone."""

    at_ns: int
    from_offset: int


class Copies:
    """One partition. Nodes are numbers; `now` gives the time of a loss."""

    def __init__(self, name: str, red: Red, now: Callable[[], int]) -> None:
        self.name = name
        self.copies: dict[int, Copy] = {}
        self.committed: dict[int, Batch] = {}
        self.committed_end = 0
        self.cold_end = 0
        self.log_start = 0
        self.losses: list[Loss] = []
        self.tail_gone = 0
        """So many bytes above what is committed may have counted for some leader, and are gone."""
        self.state: PartitionImage | None = None
        self.parted = -1
        self._served_apart: list[Loss] = []
        """What leaders committed after an unclean election that they had not heard of."""
        """The epoch of the last leader who was elected uncleanly, as the topic wished."""
        self._lost_from: int | None = None
        self._leaders: dict[int, tuple[int, str]] = {}
        self._watermarks: dict[int, int] = {}
        self._obeyed: dict[int, int] = {}
        self._red = red
        self._now = now

    def copy(self, node: int) -> Copy:
        return self.copies.setdefault(node, Copy())

    # -- one log ------------------------------------------------------------------------------------------------------

    def opened(self, node: int, start: int, batches: Sequence[Batch]) -> None:
        """A start found this on its disk. What was there when the process was gone must be there still; after a power
        cut, what is committed, if it counted only what was fsynced."""
        copy = self.copy(node)
        copy.opened += 1
        copy.behind = False
        self._agree(copy)
        end = batches[-1].last + 1 if batches else start
        if (
            copy.proved
            and not (copy.left or copy.unread)
            and end < (min(copy.agreed, self.committed_end) if copy.hurt >= 0 else copy.end)
        ):
            self._red("I5", f"{self.name}: a start of b{node} found {end}, its disk held up to {copy.end}")
        copy.replace(start, batches)
        copy.unread = False
        copy.left = copy.left and self.state is not None and node not in self.state.replicas
        self._agree(copy)
        self._budget()

    def appended(self, node: int, batch: Batch) -> None:
        copy = self.copy(node)
        if batch.base != copy.end and (copy.batches or copy.end != copy.start):
            self._red("I3", f"{self.name}: b{node} writes {batch} at the end {copy.end}")
        if not copy.batches:
            copy.start = copy.agreed = batch.base
        copy.clean = False
        copy.batches.append(batch)
        copy.end = batch.last + 1

    def cut(self, node: int, to: int, *, why: str) -> None:
        """A log ends at `to` from now on. I7: what is committed is never cut away, unless it is lost anyway or cold, or
        the copy counts for nothing."""
        copy = self.copy(node)
        self._agree(copy)
        copy.clean = copy.behind = False
        gone = copy.batches[copy.at(to) :]
        kept = self._lost_from if self._lost_from is not None else self.committed_end
        for batch in gone if self._counts(node) else ():
            if self.committed.get(batch.base) == batch and max(self.cold_end, self.log_start) <= batch.last < kept:
                self._red("I7", f"{self.name}: b{node} cuts the committed {batch} ({why}, to {to})")
                break
        self._tail_goes(copy)
        del copy.batches[len(copy.batches) - len(gone) :]
        copy.end = to
        copy.start = min(copy.start, to)
        copy.agreed = min(copy.agreed, to)
        self._budget()

    def _counts(self, node: int) -> bool:
        """Whether anybody relies on its copy: not on that of one whom the metadata log took out, and who still obeys an
        earlier leader. What is committed since may be there, and the earlier leader may lack it."""
        now = self.state
        if now is None or node in (*now.isr, *now.elr, *now.last_known):
            return True
        return self._obeyed.get(node, now.leader_epoch) >= now.leader_epoch

    def restarted(self, node: int, offset: int) -> None:
        """A log begins empty at `offset`: what lies below is cold, or was never here."""
        self.cut(node, min(offset, self.copy(node).start), why="restart")
        self.copy(node).replace(offset, ())

    def began_behind(self, node: int) -> None:
        """The same, with all that the bucket knows of what lies below."""
        self.copy(node).behind = True

    def dropped(self, node: int, start: int) -> None:
        """Local records below `start` are gone. I22: not before they are cold, or the log starts above them."""
        copy = self.copy(node)
        if start > max(self.cold_end, self.log_start, copy.start):
            self._red("I22", f"{self.name}: b{node} drops what is below {start}, cold is up to {self.cold_end}")
        copy.batches = copy.batches[copy.at(start) :]
        copy.start = max(copy.start, start)
        copy.agreed = max(copy.agreed, copy.start)

    def damaged(
        self,
        node: int,
        start: int,
        batches: Sequence[Batch],
        life: int,
        *,
        proved: bool,
        unsure: bool = False,
        partly: bool = False,
    ) -> None:
        """A power cut or worse left just this on the disk, though the next start may not be able to prove it (or, when
        that is `unsure`, may or not). It ended the machine's `life`. `partly`: only some of it was fsynced before it
        counted, for the topic says something else of that now than it did; it may count if nothing is missing."""
        copy = self.copy(node)
        end = copy.end
        self._tail_goes(copy)
        copy.replace(start, batches)
        copy.unsure = unsure or partly or (copy.clean and not proved and copy.end == end)
        if copy.proved:  # what could not be shown before cannot be now
            copy.proved = proved or (copy.unsure and not (partly and copy.end < end))
        copy.hurt, copy.lasting, copy.unread = life, proved, not copy.proved
        copy.doubted = copy.doubted or not proved
        self._agree(copy)
        self._budget()

    def died_in_doubt(self, node: int, life: int, *, full: bool) -> None:
        """Its process is gone before it could believe the directory (`Joining.trusted`). What its start had doubted,
        the next one doubts again, though the copy may have joined meanwhile. `full`: nothing on its disk speaks for
        the log, for there was no room for a note, or the log is new and not synced before it counts."""
        copy = self.copy(node)
        if copy.doubted or full:
            copy.doubted_after = life

    def believed(self, node: int) -> None:
        """Its broker believes the directory from now on."""
        copy = self.copy(node)
        copy.doubted, copy.doubted_after = False, -1

    def reconsidered(self) -> None:
        """The topic says something else of `flush` now: what was hurt before and is not back yet may be believed by
        either."""
        for copy in self.copies.values():
            if copy.hurt >= 0:
                copy.unsure = True

    def tail_bytes(self) -> int:
        """How much may count above what is committed, at most, for any leader."""
        return max([self.tail_gone, *map(self._tail, self.copies.values())])

    def _tail(self, copy: Copy) -> int:
        return sum(batch.size for batch in copy.batches[copy.at(self.committed_end) :])

    def _tail_goes(self, copy: Copy) -> None:
        self.tail_gone = max(self.tail_gone, self._tail(copy))

    def stopped(self, node: int) -> None:
        """Its broker notes that it has stopped cleanly."""
        self.copy(node).clean = True

    def cold(self, end: int) -> None:
        """The bucket holds everything below `end`, from the log start on."""
        self.cold_end = max(self.cold_end, end)

    def starts(
        self, offset: int, keeps: Sequence[Keeps], now_ms: int, clocks_apart_ms: int, asked_to_go: int = 0
    ) -> None:
        """The log starts here from now on. I22: what went, the topic did not promise to keep, by one of what it said
        lately, or somebody asked that all below `asked_to_go` be deleted."""
        if offset <= self.log_start:
            return
        known = [batch for batch in self.committed.values() if batch.last >= max(self.log_start, asked_to_go)]
        tail_bytes = self.tail_bytes()
        early: list[Batch] = []
        for each in keeps:
            early = list(
                too_early(known, offset, each, tail_bytes=tail_bytes, now_ms=now_ms, clocks_apart_ms=clocks_apart_ms)
            )
            if not early:
                break
        if early:
            self._red(
                "I22", f"{self.name} starts at {offset}, was at {self.log_start}: {early[-1]} to {early[0]} went too"
                f" early, kept is {[*keeps]}",
            )  # fmt: skip
        self.log_start = offset

    # -- leaders ------------------------------------------------------------------------------------------------------

    def leads(self, node: int, incarnation: str, epoch: int, end: int, high_watermark: int = 0) -> None:
        """I8: one leader per epoch. I9: who is elected has everything that is committed, unless that is lost. R5: no
        epoch begins below what is cold. I6: `high_watermark`, which it knows from before, is committed; what was lost
        in between is so again where it was there all the time."""
        known = self._leaders.setdefault(epoch, (node, incarnation))
        if known != (node, incarnation):
            self._red("I8", f"{self.name}: b{node} ({incarnation}) leads epoch {epoch}, and so does {known}")
        copy = self.copy(node)
        self._agree(copy)
        self.obeys(node, epoch)
        if end < self.cold_end and not self._is_deposed(epoch):
            self._red("R5", f"{self.name}: b{node} leads epoch {epoch} from {end}, cold is up to {self.cold_end}")
        if copy.agreed < self.committed_end and not self._is_deposed(epoch):
            lacks = max(copy.agreed, self.cold_end)
            if lacks < self.committed_end:
                self._budget()
                if self._lost_from is None or self._lost_from > lacks:
                    self._red(
                        "I9", f"{self.name}: b{node} leads epoch {epoch} from {end}, committed is up to"
                        f" {self.committed_end} and it has only up to {lacks}",
                    )  # fmt: skip
                self._forget_from(lacks)
        if not self._is_deposed(epoch):
            self._lost_from = None
            if high_watermark > self.committed_end:
                if not self.losses:
                    end = self.committed_end
                    self._red("I6", f"{self.name}: b{node} begins at high watermark {high_watermark}, not at {end}")
                self._commit(copy, high_watermark)

    def is_begun(self, epoch: int) -> bool:
        """Whether who was elected for that epoch has acted on it."""
        return epoch in self._leaders

    def obeys(self, node: int, epoch: int) -> None:
        """I16: a follower that has obeyed a leader obeys none of an earlier epoch any more."""
        newest = self._obeyed.get(node, epoch)
        if epoch < newest:
            self._red("I16", f"{self.name}: b{node} takes from the leader of epoch {epoch}, after epoch {newest}")
        self._obeyed[node] = max(epoch, newest)

    def _is_deposed(self, epoch: int) -> bool:
        return self.state is not None and self.state.leader_epoch > epoch

    def _forget_from(self, offset: int) -> None:
        """What is committed ends here: the rest is lost, and its offsets are given again."""
        for base in [base for base, batch in self.committed.items() if batch.last >= offset]:
            self.tail_gone += self.committed.pop(base).size
        self.losses.append(Loss(self._now(), offset))
        self.committed_end = offset
        for copy in self.copies.values():
            copy.agreed = min(copy.agreed, max(offset, copy.start))

    def watermark(
        self,
        node: int,
        epoch: int,
        high_watermark: int,
        in_sync: Collection[int],
        min_isr: int,
        *,
        controls: bool = False,
    ) -> None:
        """A leader's high watermark moved. I6: never back within an epoch, only while enough are in sync, and only over
        what all of them have; whom the metadata log has taken out since, the leader may still count, but need not be
        right about. I5: what is committed once stays what it is. `controls`: it takes itself for the controller, so
        that it need hear nobody (R6): what it commits after an unclean election that it has not heard of is lost. Any
        other acknowledges nothing that all replicas have to have (R6), and still serves what it took with acks=1."""
        before = self._watermarks.get(epoch, 0)
        if high_watermark < before:
            self._red("I6", f"{self.name}: high watermark of epoch {epoch} goes from {before} to {high_watermark}")
        self._watermarks[epoch] = max(before, high_watermark)
        copy = self.copy(node)
        if high_watermark > copy.end:
            self._red("I6", f"{self.name}: high watermark {high_watermark} is beyond the end {copy.end} of b{node}")
        self._agree(copy)
        if copy.agreed < min(high_watermark, self.committed_end) and self._lost_from is None:
            self._red(
                "I5", f"{self.name}: b{node} commits {high_watermark} under epoch {epoch}, but its log parts at"
                f" {copy.agreed} from what is committed up to {self.committed_end}",
            )  # fmt: skip
        if epoch < self.parted <= max(self._leaders):
            self._served_apart.append(Loss(self._now(), before))
            if controls:
                self.losses.append(Loss(self._now(), before))
            return  # another one leads, who need not have had this, and nobody waits for who led before
        self._commit(copy, high_watermark)
        if epoch < self.parted:
            self._budget()
        if len(in_sync) < min_isr:
            self._red(
                "R3", f"{self.name}: high watermark moves to {high_watermark} with {sorted(in_sync)} in sync,"
                f" min.insync.replicas is {min_isr}",
            )  # fmt: skip
        for each in sorted(self._bound(node, epoch, in_sync)):
            other = self.copy(each)
            self._agree(other)
            if other.proved and other.agreed < high_watermark and self._lost_from is None:
                self._red(
                    "I6", f"{self.name}: high watermark {high_watermark} of b{node}, but b{each} of the in-sync"
                    f" {sorted(in_sync)} has only up to {other.agreed}",
                )  # fmt: skip

    def followed(self, node: int, high_watermark: int) -> None:
        """A follower takes so much for committed, and serves it to consumers near by (KIP-392). I6: so much is. I5: and
        it is what the follower has. What is lost meanwhile it may know of later."""
        copy = self.copy(node)
        self._agree(copy)
        sure = min(self.committed_end, copy.agreed)
        if high_watermark > sure and not self.may_be_gone(sure, 0):
            self._red(
                "I6" if high_watermark > self.committed_end else "I5", f"{self.name}: follower b{node} serves up to"
                f" {high_watermark}, committed is up to {self.committed_end}, of which it has up to {copy.agreed}",
            )  # fmt: skip

    def _bound(self, node: int, epoch: int, in_sync: Collection[int]) -> set[int]:
        """Whom a high watermark has to wait for: a leader in force for all that the metadata log says (R3)."""
        if self.state is None:
            return {*in_sync}
        said = {node, *self.state.isr}
        return said if self.state.leader_epoch == epoch else said & {*in_sync}

    def _commit(self, copy: Copy, upto: int) -> None:
        if self.committed_end < copy.start:
            self.committed_end = copy.start
        for batch in copy.batches[copy.at(self.committed_end) :]:
            if batch.last >= upto:
                break
            self.committed[batch.base] = batch
            self.committed_end = batch.last + 1

    # -- the metadata log ---------------------------------------------------------------------------------------------

    def settled(
        self,
        new: PartitionImage,
        live: Collection[int],
        lives: Mapping[int, int],
        between: Collection[int] = (),
        *,
        unclean: bool = False,
    ) -> None:
        """The metadata log says this of the partition now; `live` are the brokers that may lead, `lives` says of each
        which of its lives has registered, `between` who was in sync at any time within this slot. `unclean`: whether
        the topic wants somebody to lead, whatever he lacks; what is lost by it is lost from then on."""
        old, self.state = self.state, new
        if unclean and old is not None and self._is_unclean(old, new, lives):
            self.parted = new.leader_epoch
            self._budget()
        members = sorted({*new.isr, *new.elr})
        if new.leader not in (NO_LEADER, *new.isr):
            self._red("I10", f"{self.name}: the leader {new.leader} is not in sync: {new}")
        if not {*new.isr} <= {*live}:  # the last one too: it is eligible then, and nobody leads
            self._red("I10", f"{self.name}: who is fenced or has stopped is in sync: {new}, live {sorted(live)}")
        if {*new.isr} & {*new.elr} or not {*members} <= {*new.replicas}:
            self._red("I10", f"{self.name}: isr and elr are no disjoint subsets of the replicas: {new}")
        for node in new.elr:
            copy = self.copy(node)
            joined = old is not None and node not in old.isr and node not in old.elr
            if joined and 0 <= copy.hurt < lives.get(node, 0) - (node not in between):
                copy.proved, copy.hurt, copy.unsure = (
                    True,
                    -1,
                    False,
                )  # within one slot it joined, and left or came back whole
        for node in members:
            self._check_member(node, new, lives)
        if old is not None:
            doubted = {node for node, copy in self.copies.items() if 0 <= copy.doubted_after < lives.get(node, 0)}
            joined_in = {node: life - (node in between) for node, life in lives.items()}
            came_back = {node for node in between if 0 <= self.copy(node).hurt < lives.get(node, 0)}
            self._check_step(old, new, members, joined_in, doubted, came_back)
        for node, copy in self.copies.items():
            copy.left = (copy.left or node not in new.replicas) and node not in new.isr
        for node in new.isr:
            copy = self.copy(node)
            if 0 <= copy.hurt < lives.get(node, 0):
                copy.proved, copy.hurt, copy.unsure = True, -1, False
            elif copy.hurt == lives.get(node, 0) and copy.lasting and old is not None and node not in old.isr:
                copy.proved = True  # it had joined when it was hurt, though nobody had written so yet
        self._budget()

    def _is_unclean(self, old: PartitionImage, new: PartitionImage, lives: Mapping[int, int]) -> bool:
        """Whether one leads who was not eligible before, or was no longer when it came back unproved."""
        elected = new.leader != NO_LEADER and new.leader_epoch > old.leader_epoch
        if not elected or new.loss == old.loss:
            return False
        copy = self.copy(new.leader)
        returned = not copy.proved and copy.hurt < lives.get(new.leader, 0)
        return returned or new.leader not in (*old.isr, *old.elr)

    def _check_member(self, node: int, new: PartitionImage, lives: Mapping[int, int]) -> None:
        """I10, R1: whoever is in ISR or ELR has all that is committed; who came back unproved is in neither."""
        copy = self.copy(node)
        self._agree(copy)
        returned = not copy.proved and copy.hurt < lives.get(node, 0)
        if returned and node in new.elr and not copy.unsure:
            self._red("R1", f"{self.name}: b{node} came back unproved and is eligible: {new}")
        whole = max(copy.agreed, self.cold_end) >= self.committed_end
        if not whole and self._lost_from is None and (copy.proved or (returned and node != new.leader)):
            self._red("I10", f"{self.name}: b{node} has up to {copy.agreed} of {self.committed_end} committed: {new}")

    def _check_step(
        self,
        old: PartitionImage,
        new: PartitionImage,
        members: list[int],
        lives: Mapping[int, int],
        doubted: Collection[int],
        came_back: Collection[int],
    ) -> None:
        if new.leader_epoch < old.leader_epoch or (
            new.leader_epoch == old.leader_epoch and NO_LEADER != new.leader != old.leader != NO_LEADER
        ):
            self._red("I8", f"{self.name}: from {old} to {new}")
        gone = sorted({*old.isr, *old.elr} - {*members})
        left = [node for node in gone if self.holds(node) and not self.copy(node).unsure and node not in doubted]
        # Damage that nobody can know of yet is a loss of its own: the budget says so. (`lives`: those in which they may
        # have joined within this slot.)
        relied_on = [
            node
            for node in members
            if self.holds(node) or self.copy(node).unsure or self.copy(node).hurt >= lives.get(node, 0)
        ]
        relied_on += came_back  # within this slot, and until then whole for all that others knew
        # Who joins has it by the word of the leader that leaves in the same step (the end of a move).
        relied_on += [node for node in new.isr if node not in old.isr and self.copy(node).agreed >= self.committed_end]
        parted = self.parted == new.leader_epoch
        if left and self.committed_end > self.cold_end and not relied_on and not parted:
            self._red("I10", f"{self.name}: the last whole copies {left} left isr and elr: {old}, then {new}")
        nobody_was = not old.isr and not old.elr and self._lost_from is not None
        # Who returned last may have been eligible until this step. That it is the last resort tells the loss then.
        told = new.loss is not None and new.loss.leader_epoch == new.leader_epoch > old.leader_epoch
        known = (*old.isr, *old.elr, *old.last_known)
        if new.leader != NO_LEADER and known and (nobody_was or told) and not parted:
            ends = {node: self.copy(node).agreed for node in (*known, new.leader)}
            if ends[new.leader] < max(ends.values()) > self.cold_end:
                self._red("R4", f"{self.name}: b{new.leader} is elected though others have more: {ends} of {old}")

    def holds(self, node: int) -> bool:
        """Whether all that is committed is there, and can be shown to be."""
        copy = self.copy(node)
        self._agree(copy)
        return copy.proved and copy.agreed >= self.committed_end

    # -- the budget ---------------------------------------------------------------------------------------------------

    def _agree(self, copy: Copy) -> None:
        """Moves on to where the copy parts from what is committed; below the log start nobody asks."""
        committed, copy.agreed = self.committed, max(copy.agreed, min(self.log_start, copy.end))
        if copy.agreed >= min(copy.end, self.committed_end):
            return
        first = max(copy.at(copy.agreed) - 1, 0)  # the log may start in the middle of that batch
        for batch in [each for each in copy.batches[first:] if each.last >= copy.agreed]:
            if committed.get(batch.base) != batch:
                break
            copy.agreed = batch.last + 1

    def _budget(self) -> None:
        """Whether what is committed is still held by somebody who may lead."""
        if self.state is None or self.committed_end <= self.cold_end:
            return
        best = self.cold_end
        for node in (*self.state.isr, *self.state.elr):
            copy = self.copy(node)
            self._agree(copy)
            best = max(best, copy.agreed)
        if best < self.committed_end and (self._lost_from is None or best < self._lost_from):
            self._lost_from = best
            self.losses.append(Loss(self._now(), best))

    def may_be_served_apart(self, offset: int, since_ns: int) -> bool:
        """Whether a reader may have got this offset since then as another record, or as one that is lost by now."""
        apart = any(loss.from_offset <= offset and loss.at_ns >= since_ns for loss in self._served_apart)
        return apart or self.may_be_gone(offset, since_ns)

    def may_be_gone(self, offset: int, since_ns: int) -> bool:
        """Whether a record that was sent at `since_ns` and got this offset may be lost by now."""
        return any(loss.from_offset <= offset and loss.at_ns >= since_ns for loss in self.losses)
