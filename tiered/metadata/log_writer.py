"""The writing side of the metadata log: slots by put-if-absent (M1, M2, M3).

One put is in progress at a time, and nothing else is decided while its outcome is open. So slots are dense and written
once (I24), and epochs never go back (I25). A snapshot is written before the boundary names it, and deleted after the
boundary has dropped it (I23). Callers batch changes into entries; this file never looks inside an entry.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered.ids import encode_uuid
from tiered.log_limiter import StateLogLimiter
from tiered.metadata import layout
from tiered.metadata.changes import Change, ControllerElected
from tiered.metadata.election import SlotOutcome, new_candidate
from tiered.metadata.image import Image
from tiered.metadata.layout import Boundary, Entry, Format, SnapshotRef
from tiered.metadata.log_reader import (
    LoadedMetadata,
    get_verified,
    load_metadata,
    read_boundary,
    read_entry,
    read_format,
    verify_cluster,
)
from tiered.metrics import Metrics
from tiered.object_store.conditional_put import PutOutcome, Stored, put_until_known
from tiered.ports import Clock, NotFound, ObjectStore, Ok, Rng

log = logging.getLogger(__name__)

WrittenT = TypeVar("WrittenT", Entry, Format, Boundary)

SNAPSHOT_SLOTS = 256
"""Entries after which a snapshot is due."""
VERIFY_INTERVAL_NS = 60_000_000_000
"""Longest time that a writing controller goes without checking that the store still holds its cluster."""
HOLE_SLOTS_MAX = 900
"""Most slots that a look for holes covers: one page of a list."""
_SNAPSHOT_BYTES = 4 << 20
_BACKOFF_SECONDS = (0.02, 5.0)


class MetadataLog:
    """The log as its controller sees it. `next_slot` and `epoch` are meaningful after `take_over`.

    `last_error` names the object that holds up the log, and why, while there is one.
    """

    def __init__(
        self, store: ObjectStore, clock: Clock, rng: Rng, metrics: Metrics, *, snapshot_slots: int = SNAPSHOT_SLOTS
    ) -> None:
        self._store = store
        self._snapshot_slots = snapshot_slots
        self._clock = clock
        self._rng = rng.stream("metadata-log")
        self._stall_log = StateLogLimiter(clock)
        self._writes_work = True
        """True if no request failed since an entry was written: the log has few lines about a state that lasts."""
        self._commits = metrics.counter("tiered_metadata_commits_total", "Entries written to the metadata log.")
        self._retries = metrics.counter(
            "tiered_metadata_retries_total", "Conditional puts of the metadata log whose outcome had to be read back."
        )
        self.cluster_id = ""
        """Cluster of the log, known after `load_or_create_format`."""
        self.next_slot = 0
        self.epoch = 0
        self.last_error = ""
        """Error of the last attempt at the current write; empty if the first attempt succeeded."""
        self.newest_body = b""
        """Body of the last entry written here."""
        self.takeover_entries: list[bytes] = []
        """Bodies that the last `take_over` found and wrote, from the slot after its image on."""
        self.unconfirmed_since_ns = -1
        """Start of the write of an entry that the bucket has not confirmed; -1 if there is none."""
        self._snapshot_slot = -1
        self._bytes = 0
        self._next_check = 0
        self._whole_to = 0
        """Slot up to which no slot was missing at the last look."""
        self._verified_ns = clock.mono_ns()
        """Time at which the store last proved to hold this cluster."""

    async def load_or_create_format(self, own_cluster_id: str = "") -> tuple[Format, bool]:
        """Returns the store's format, and True if this call created it because the store was empty.

        A broker that belongs to a cluster makes no other one. Raises `Unavailable` then: an empty store may be a
        directory that is not mounted.
        """
        stored, created = await self._load_or_create_format(own_cluster_id)
        self.cluster_id = stored.cluster_id
        return stored, created

    async def _load_or_create_format(self, own_cluster_id: str) -> tuple[Format, bool]:
        stored = await read_format(self._store)
        if stored is None and await self._has_log():  # its cluster id is lost, or another broker has just created it
            stored = await read_format(self._store)
            if stored is None:
                why = "the object that names the cluster is missing, but its metadata log exists: put it back"
                raise Corrupt(why, where=layout.FORMAT_KEY)
        if stored is not None:
            return stored, False
        if own_cluster_id:
            raise Unavailable(
                f"{self._store.url} holds no cluster, and the data directory belongs to cluster {own_cluster_id}: mount"
                " the store, or name the right one; for a new cluster start with another data.dir"
            )
        cluster_id = encode_uuid(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        mine = Format(layout.FORMAT_VERSION, cluster_id, self._nonce())
        other = await self._create(layout.FORMAT_KEY, layout.encode_format(mine), mine, layout.decode_format)
        return (mine, True) if other is None else (other, False)

    async def _has_log(self) -> bool:
        for prefix in (layout.LOG_PREFIX, layout.SNAPSHOT_PREFIX):
            if await self._store.list(prefix, limit=1):
                return True
        return False

    async def load(self) -> Image:
        """Returns the committed image and remembers the end of the log."""
        return self._set_position(await load_metadata(self._store, self.cluster_id))

    async def take_over(self, image: Image, node_id: int, incarnation: str) -> Image:
        """Becomes controller: writes an epoch above every epoch in the log into the slot after `image` (M2).

        Returns the image that ends with that entry. Raises `Fenced` if another candidate took an equal or higher epoch
        first, and `Refused` if the bucket lacks a slot of `image`: nothing is written behind a hole.
        """
        await self._check_behind(image)
        candidate = new_candidate(image.controller_epoch, image.slot + 1)
        self.takeover_entries = []
        while True:
            self.next_slot, self.epoch = candidate.slot, candidate.epoch
            change = ControllerElected(candidate.epoch, node_id, incarnation)
            other = await self._write((change,))
            if other is None:
                self.takeover_entries.append(self.newest_body)
                break
            self.takeover_entries.append(layout.encode_entry(other))
            image = layout.apply_entries(image, [other])
            outcome, candidate = candidate.on_slot_lost(other.epoch)
            if outcome is SlotOutcome.SUPERSEDED:
                raise Fenced(f"slot {other.slot} of the metadata log belongs to controller epoch {other.epoch}")
        log.info("broker is controller now node_id=%d epoch=%d slot=%d", node_id, self.epoch, candidate.slot)
        return image.apply((change,), candidate.slot)

    async def append(self, changes: Sequence[Change]) -> int:
        """Commits one entry and returns its slot. Raises `Fenced` if another controller has the slot: step down for
        good (M2).

        Returns only when the outcome is known, however long the store is unreachable.
        """
        slot = self.next_slot
        other = await self._write(tuple(changes))
        if other is not None:
            raise Fenced(f"slot {slot} of the metadata log belongs to controller epoch {other.epoch}, not {self.epoch}")
        return slot

    async def check_superseded(self) -> None:
        """Checks that no other controller has written since, with one request per call.

        The calls take turns: the next slot, the boundary (below which that slot may have been deleted), the cluster of
        the bucket, and all slots since the last look. Raises `Fenced` if another controller has written: one that
        was frozen learns it here before its next write. Raises `Unavailable`, `Corrupt`, or `Refused` for another
        cluster and for a bucket that went back.
        """
        slot, check = self.next_slot, self._next_check
        self._next_check = (check + 1) % 4
        if check == 0:
            await self.check_next_slot()
        elif check == 2:
            await self.verify_cluster()
        elif check == 3:
            await self._refuse_hole(slot - 1)
        else:
            await self._refuse_collected(slot)

    async def confirm_newest(self) -> None:
        """Raises `Fenced` if another controller has written before this call, however long ago. Makes two requests: a
        slot that the first one does not see, because it was deleted, is below the boundary. Raises `Unavailable`,
        `Corrupt` and `Refused` as `check_superseded` does."""
        slot = self.next_slot
        await self.check_next_slot()
        await self._refuse_collected(slot)

    async def _refuse_collected(self, slot: int) -> None:
        if (await read_boundary(self._store))[0].collected >= slot:
            raise Fenced(f"the metadata log was collected beyond slot {slot}, which this controller would write next")

    async def verify_cluster(self) -> None:
        """Raises `Refused` if the prefix belongs to another cluster now.

        Makes one request; may raise `Unavailable` or `Corrupt`.
        """
        await verify_cluster(self._store, self.cluster_id)
        self._verified_ns = self._clock.mono_ns()

    async def _check_behind(self, image: Image) -> None:
        """Refuses to write behind a hole, like `_refuse_hole`, and waits while the bucket is unreachable."""
        attempt = 0
        while True:
            try:
                return await self._refuse_hole(image.slot)
            except (Unavailable, Corrupt) as error:
                await self._back_off(layout.slot_key(image.slot), attempt, str(error))
                attempt += 1

    async def _refuse_hole(self, last: int) -> None:
        """Raises `Refused` if a slot up to `last`, all of which are committed, is gone: the bucket went back.

        Looks at those since the last look. Makes one request if all are there. Raises `Unavailable` and `Corrupt`.
        """
        first = max(self._whole_to, last - HOLE_SLOTS_MAX, 0)
        if first > last:
            return
        listed = await self._store.list(layout.LOG_PREFIX, layout.slot_key(first - 1) if first else "")
        missing = set(range(first, last + 1)).difference(layout.slot_of(each.key) for each in listed)
        missing = await self._uncollected(missing) if missing else missing
        if not missing:
            self._whole_to = last
        elif isinstance(await self._store.get(layout.slot_key(min(missing)), 0, 1), NotFound):  # lists may be old
            await self.verify_cluster()  # an empty bucket may be a directory that is not mounted
            # Another controller may have collected the slot since the boundary was read, above all if this one froze.
            if min(missing) not in await self._uncollected(missing):
                return
            key = layout.slot_key(min(missing))
            if any(layout.slot_of(each.key) > min(missing) for each in listed):
                # later ones may also be what this controller wrote since the bucket went back
                raise Refused(
                    Code.INCONSISTENT_CLUSTER_ID,
                    f"the object {key} of the metadata log is gone, and later ones are there: put the object back, from"
                    " an older version of it or from a copy of the bucket, and start the brokers; if more objects are"
                    " gone, the bucket went back to an older state: stop all brokers, and put the newer state of the"
                    " bucket back",
                )
            raise Refused(
                Code.INCONSISTENT_CLUSTER_ID,
                f"the bucket went back to an older state: slot {min(missing)} of its metadata log was committed, and"
                f" {key} is gone: stop all brokers, and put the newer state of the bucket back",
            )

    async def _uncollected(self, slots: set[int]) -> set[int]:
        """Returns those of `slots` that no controller may have deleted, with one request."""
        collected = (await read_boundary(self._store))[0].collected
        return {slot for slot in slots if slot > collected}

    async def check_next_slot(self) -> None:
        """Checks the next slot only, otherwise like `check_superseded`."""
        slot = self.next_slot
        entry = await read_entry(self._store, slot)
        if entry is not None:
            entry[0].verify_cluster(self.cluster_id)
        if entry is not None and entry[0].epoch > self.epoch:
            raise Fenced(f"slot {slot} of the metadata log belongs to controller epoch {entry[0].epoch}")

    @property
    def stall_reason(self) -> str:
        """Reason why the write in progress is not confirmed yet.

        Empty if no write waits, also after one was given up.
        """
        return self.last_error if self.unconfirmed_since_ns >= 0 else ""

    @property
    def is_snapshot_due(self) -> bool:
        """True if a replay would have to read more than a start should."""
        return self.next_slot - 1 - self._snapshot_slot >= self._snapshot_slots or self._bytes >= _SNAPSHOT_BYTES

    async def write_snapshot(self, image: Image) -> None:
        """Writes `image`, then moves the boundary, then deletes the slots that the boundary gives up (M3)."""
        nonce = self._nonce()
        key = layout.snapshot_key(image.slot, nonce)
        result = await self._store.put(key, layout.encode_snapshot(image))
        if not isinstance(result, Ok):
            raise Unavailable(f"the snapshot was not written: {result}")
        boundary = await self._advance_boundary(SnapshotRef(image.slot, key), nonce)
        self._snapshot_slot, self._bytes = boundary.snapshots[-1].slot, 0
        await self._delete_collected(boundary)
        log.info("metadata snapshot written slot=%d collected=%d", image.slot, boundary.collected)

    def _set_position(self, loaded: LoadedMetadata) -> Image:
        self.next_slot = loaded.image.slot + 1
        self._whole_to = max(loaded.image.slot, 0)
        self._snapshot_slot = loaded.boundary.snapshots[-1].slot if loaded.boundary.snapshots else -1
        self._bytes = loaded.tail_bytes
        return loaded.image

    async def _write(self, changes: tuple[Change, ...]) -> Entry | None:
        """Writes one entry into `next_slot`. Returns None on success, else the entry of another writer in that slot."""
        mine = Entry(self.next_slot, self.epoch, self._nonce(), changes, self.cluster_id)
        body = layout.encode_entry(mine)
        key = layout.slot_key(mine.slot)
        self.unconfirmed_since_ns, self.last_error = self._clock.mono_ns(), ""
        try:
            other = await self._create(key, body, mine, lambda data: layout.decode_entry(data, mine.slot))
            if other is not None:
                other.verify_cluster(self.cluster_id)
            await self._check_boundary(mine.slot)
            await self._check_cluster()
        finally:
            self.unconfirmed_since_ns = -1
        if other is not None:
            return other
        self._writes_work = True
        self.next_slot += 1
        self.newest_body = body
        self._bytes += len(body)
        self._commits.inc()
        return None

    async def _check_boundary(self, slot: int) -> None:
        """Raises `Fenced` if `slot` is at or below the boundary: it may be free only because it was collected (M3)."""
        attempt = 0
        while True:
            try:
                boundary, _ = await read_boundary(self._store)
            except (Unavailable, Corrupt) as error:
                await self._back_off(layout.BOUNDARY_KEY, attempt, str(error))
                attempt += 1
                continue
            if slot <= boundary.collected:
                raise Fenced(f"slot {slot} of the metadata log was collected up to {boundary.collected}")
            return

    async def _check_cluster(self) -> None:
        """Checks once a minute of writing that the bucket still holds this cluster.

        Slots that another cluster has not reached yet are free for this one too. A missing FORMAT is an accident and
        does not stop writes.
        """
        attempt = 0
        while self.cluster_id and self._clock.mono_ns() - self._verified_ns >= VERIFY_INTERVAL_NS:
            try:
                await self.verify_cluster()
            except Unavailable as error:
                await self._back_off(layout.FORMAT_KEY, attempt, str(error))
                attempt += 1
            except Corrupt as error:
                log.error("the store no longer names its cluster, writes go on why=%s", error)
                self._verified_ns = self._clock.mono_ns()

    async def _create(
        self, key: str, body: bytes, mine: WrittenT, decode: Callable[[bytes], WrittenT]
    ) -> WrittenT | None:
        """Creates `key` by put-if-absent (M1). Returns None if the object is `mine`, else the object that is there.

        Damaged bytes that are read back decide nothing.
        """
        refused = 0
        while True:
            try:
                settled = await put_until_known(
                    self._store, key, body, mine.nonce, before=None,
                    read=partial(self._read_back, key, decode), pause=partial(self._back_off, key),
                )  # fmt: skip
            except Unavailable as error:
                await self._back_off(key, refused, str(error))
                refused += 1
            else:
                return settled.found.value if settled.outcome is PutOutcome.LOST and settled.found else None

    async def _read_back(self, key: str, decode: Callable[[bytes], WrittenT]) -> Stored[WrittenT] | None:
        try:
            got = await get_verified(self._store, key, decode)
        except Corrupt as error:
            raise Unavailable(str(error)) from None
        return None if got is None else Stored(got[0], got[0].nonce, got[1].version)

    async def _advance_boundary(self, snapshot: SnapshotRef, nonce: str) -> Boundary:
        """Moves the boundary by compare-and-swap (M1), unless it already names a newer snapshot."""
        while True:
            boundary, version = await read_boundary(self._store)
            if boundary.snapshots and boundary.snapshots[-1].slot >= snapshot.slot:
                return boundary
            new = boundary.advance(snapshot, nonce)
            settled = await put_until_known(
                self._store, layout.BOUNDARY_KEY, layout.encode_boundary(new), nonce,
                before=Stored(boundary, boundary.nonce, version) if version else None,
                read=partial(self._read_back, layout.BOUNDARY_KEY, layout.decode_boundary),
                pause=partial(self._back_off, layout.BOUNDARY_KEY),
            )  # fmt: skip
            if settled.outcome is PutOutcome.LANDED:
                return new

    async def _delete_collected(self, boundary: Boundary) -> None:
        """Deletes the slots that the boundary gave up, and older snapshots that it does not name."""
        await self._delete_below(layout.LOG_PREFIX, boundary.collected, keep=())
        named = tuple(each.key for each in boundary.snapshots)
        await self._delete_below(layout.SNAPSHOT_PREFIX, boundary.snapshots[-1].slot, keep=named)

    async def _delete_below(self, prefix: str, slot: int, keep: tuple[str, ...]) -> None:
        after = ""
        while True:
            page = [each.key for each in await self._store.list(prefix, after)]
            old = [key for key in page if 0 <= layout.slot_of(key) <= slot and key not in keep]
            if old:
                await self._store.delete(old)
            if not page or layout.slot_of(page[-1]) > slot:
                return
            after = page[-1]

    async def _back_off(self, key: str, attempt: int, why: str) -> None:
        """Waits with full jitter before the next attempt."""
        self._retries.inc()
        self.last_error = f"{key}: {why}"
        seconds = self._stall_log.admit(is_start=self._writes_work)
        self._writes_work = False
        if seconds is not None:
            log.warning("metadata write not confirmed key=%s attempt=%d seconds=%d why=%s", key, attempt, seconds, why)
        shortest, longest = _BACKOFF_SECONDS
        await self._clock.sleep(min(longest, shortest * 2 ** min(attempt, 16)) * self._rng.random())

    def _nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"
