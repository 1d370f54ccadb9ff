"""The writing side of the metadata log: slots by put-if-absent under rules M1-M3.

One put is in flight at a time, and nothing else is decided while its outcome is open: after anything but a clean
success the object is read back, by its nonce. Callers batch changes into entries; this file never looks inside them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.ids import encode_uuid
from tiered.log_limiter import StateLogLimiter
from tiered.metadata import layout
from tiered.metadata.changes import Change, ControllerElected
from tiered.metadata.election import SlotOutcome, new_candidacy
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
from tiered.ports import Clock, ObjectStore, Ok, Rng

log = logging.getLogger(__name__)

T = TypeVar("T")

SNAPSHOT_SLOTS = 256
"""Entries after which a snapshot is due."""
VERIFY_INTERVAL_NS = 60_000_000_000
"""Between two looks of a controller that writes whether the store still holds its cluster."""
_SNAPSHOT_BYTES = 4 << 20
_BACKOFF_SECONDS = (0.02, 5.0)


class MetadataLog:
    """The log as its controller sees it. `next_slot` and `epoch` are meaningful after `take`; `trouble` says which
    object keeps it from going on, and why, while there is one."""

    def __init__(
        self, store: ObjectStore, clock: Clock, rng: Rng, metrics: Metrics, *, snapshot_slots: int = SNAPSHOT_SLOTS
    ) -> None:
        self._store = store
        self._snapshot_slots = snapshot_slots
        self._clock = clock
        self._rng = rng.stream("metadata-log")
        self._stall_log = StateLogLimiter(clock)
        self._commits = metrics.counter("tiered_metadata_commits_total", "Entries written to the metadata log.")
        self._retries = metrics.counter(
            "tiered_metadata_retries_total", "Conditional puts of the metadata log whose outcome had to be read back."
        )
        self.cluster_id = ""
        """Whose log it is, once `format` has found out."""
        self.next_slot = 0
        self.epoch = 0
        self.last_error = ""
        """Why the bucket has not confirmed what was written last, at the last try; empty: it did at the first."""
        self.newest_body = b""
        """The body of the last entry that was written here."""
        self.takeover_entries: list[bytes] = []
        """The bodies that the last `take` found and wrote, from the slot after its image on."""
        self.unconfirmed_since_ns = -1
        """Since when an entry has been under way that the bucket has not confirmed; -1: none is."""
        self._snapshot_slot = -1
        self._bytes = 0
        self._next_check = 0
        self._verified_ns = clock.mono_ns()
        """When the store was last seen to hold this cluster."""

    async def load_or_create_format(self) -> tuple[Format, bool]:
        """What the store holds, and whether this call wrote it because the store was empty."""
        found, created = await self._load_or_create_format()
        self.cluster_id = found.cluster_id
        return found, created

    async def _load_or_create_format(self) -> tuple[Format, bool]:
        found = await read_format(self._store)
        if found is None and await self._has_log():  # of a cluster whose id is lost, or that was made just now
            found = await read_format(self._store)
            if found is None:
                why = "the name of the cluster is missing, and its metadata log is there: put it back"
                raise Corrupt(why, where=layout.FORMAT_KEY)
        if found is not None:
            return found, False
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
        """The committed image; remembers where the log ends."""
        return self._set_position(await load_metadata(self._store, self.cluster_id))

    async def take_over(self, image: Image, node_id: int, incarnation: str) -> Image:
        """Becomes controller: writes an epoch above every one in the log into the slot after `image` (rule M2).

        Returns the image that ends with that entry. `Fenced` when another one took an equal or higher epoch first.
        """
        candidacy = new_candidacy(image.controller_epoch, image.slot + 1)
        self.takeover_entries = []
        while True:
            self.next_slot, self.epoch = candidacy.slot, candidacy.epoch
            change = ControllerElected(candidacy.epoch, node_id, incarnation)
            other = await self._write((change,))
            if other is None:
                self.takeover_entries.append(self.newest_body)
                break
            self.takeover_entries.append(layout.encode_entry(other))
            image = layout.apply_entries(image, [other])
            outcome, candidacy = candidacy.on_slot_lost(other.epoch)
            if outcome is SlotOutcome.SUPERSEDED:
                raise Fenced(f"slot {other.slot} of the metadata log belongs to controller epoch {other.epoch}")
        log.info("controller node_id=%d epoch=%d slot=%d", node_id, self.epoch, candidacy.slot)
        return image.apply((change,), candidacy.slot)

    async def append(self, changes: Sequence[Change]) -> int:
        """Commits one entry and returns its slot. `Fenced` when the slot belongs to another: step down for good.

        Does not return before the outcome is known, however long the store is away.
        """
        slot = self.next_slot
        other = await self._write(tuple(changes))
        if other is not None:
            raise Fenced(f"slot {slot} of the metadata log belongs to controller epoch {other.epoch}, not {self.epoch}")
        return slot

    async def check_superseded(self) -> None:
        """Asks the bucket whether another controller has written since: the next slot, the next time the boundary,
        under which that slot may have gone, then whether the bucket still holds this cluster. `Fenced` when one has:
        who froze for a while learns it here, not only when it writes. One request. `Unavailable`, `Corrupt`; `Refused`
        for another cluster."""
        slot, check = self.next_slot, self._next_check
        self._next_check = (check + 1) % 3
        if check == 0:
            await self.check_next_slot()
        elif check == 2:
            await self.verify_cluster()
        elif (await read_boundary(self._store))[0].collected >= slot:
            raise Fenced(f"the metadata log was collected beyond slot {slot}, which this controller would write next")

    async def verify_cluster(self) -> None:
        """`Refused` when the prefix is another cluster's now. One request. `Unavailable`, `Corrupt`."""
        await verify_cluster(self._store, self.cluster_id)
        self._verified_ns = self._clock.mono_ns()

    async def check_next_slot(self) -> None:
        """As `watch`, at the next slot."""
        slot = self.next_slot
        found = await read_entry(self._store, slot)
        if found is not None:
            found[0].verify_cluster(self.cluster_id)
        if found is not None and found[0].epoch > self.epoch:
            raise Fenced(f"slot {slot} of the metadata log belongs to controller epoch {found[0].epoch}")

    @property
    def stall_reason(self) -> str:
        """Why an entry that is under way is not confirmed yet; empty while none waits, given up or refused included."""
        return self.last_error if self.unconfirmed_since_ns >= 0 else ""

    @property
    def is_snapshot_due(self) -> bool:
        """Whether a replay would have to read more than a start should."""
        return self.next_slot - 1 - self._snapshot_slot >= self._snapshot_slots or self._bytes >= _SNAPSHOT_BYTES

    async def write_snapshot(self, image: Image) -> None:
        """Writes `image`, moves the boundary, then deletes what the boundary gives up: in this order."""
        nonce = self._nonce()
        key = layout.snapshot_key(image.slot, nonce)
        result = await self._store.put(key, layout.encode_snapshot(image))
        if not isinstance(result, Ok):
            raise Unavailable(f"snapshot not written: {result}")
        boundary = await self._advance_boundary(SnapshotRef(image.slot, key), nonce)
        self._snapshot_slot, self._bytes = boundary.snapshots[-1].slot, 0
        await self._delete_collected(boundary)
        log.info("metadata snapshot slot=%d collected=%d", image.slot, boundary.collected)

    def _set_position(self, loaded: LoadedMetadata) -> Image:
        self.next_slot = loaded.image.slot + 1
        self._snapshot_slot = loaded.boundary.snapshots[-1].slot if loaded.boundary.snapshots else -1
        self._bytes = loaded.tail_bytes
        return loaded.image

    async def _write(self, changes: tuple[Change, ...]) -> Entry | None:
        """One entry into `next_slot`; None when it is ours, else the entry that is there."""
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
        self.next_slot += 1
        self.newest_body = body
        self._bytes += len(body)
        self._commits.inc()
        return None

    async def _check_boundary(self, slot: int) -> None:
        """A slot at or below the boundary may have been free only because it was collected (rule M3)."""
        attempt = 0
        while True:
            try:
                boundary, _ = await read_boundary(self._store)
            except (Unavailable, Corrupt) as error:
                attempt = await self._back_off(attempt, layout.BOUNDARY_KEY, str(error))
                continue
            if slot <= boundary.collected:
                raise Fenced(f"slot {slot} of the metadata log was collected up to {boundary.collected}")
            return

    async def _check_cluster(self) -> None:
        """Once a minute of writing: slots that another cluster has not reached yet are free for this one too. That
        FORMAT is missing is an accident, and no reason to write nothing."""
        attempt = 0
        while self.cluster_id and self._clock.mono_ns() - self._verified_ns >= VERIFY_INTERVAL_NS:
            try:
                await self.verify_cluster()
            except Unavailable as error:
                attempt = await self._back_off(attempt, layout.FORMAT_KEY, str(error))
            except Corrupt as error:
                log.error("the store does not say any more which cluster it holds why=%s", error)
                self._verified_ns = self._clock.mono_ns()

    async def _create(self, key: str, body: bytes, mine: T, decode: Callable[[bytes], T]) -> T | None:
        """Put-if-absent under rule M1: None when `key` holds `mine` (told by its nonce), else what it holds. What is
        read back and does not prove itself decides nothing."""
        attempt = 0
        while True:
            try:
                result = await self._store.put(key, body, if_absent=True)
                if isinstance(result, Ok):
                    return None
                why = str(result)
                got = await get_verified(self._store, key, decode)
                if got is not None:
                    return None if got[0] == mine else got[0]
            except (Unavailable, Corrupt) as error:
                why = str(error)
            attempt = await self._back_off(attempt, key, why)

    async def _advance_boundary(self, snapshot: SnapshotRef, nonce: str) -> Boundary:
        """Compare-and-swap of the boundary under rule M1; another's newer snapshot stands."""
        attempt = 0
        while True:
            boundary, version = await read_boundary(self._store)
            if boundary.nonce == nonce or (boundary.snapshots and boundary.snapshots[-1].slot >= snapshot.slot):
                return boundary
            new = layout.encode_boundary(boundary.advance(snapshot, nonce))
            if version:
                result = await self._store.put(layout.BOUNDARY_KEY, new, if_match=version)
            else:
                result = await self._store.put(layout.BOUNDARY_KEY, new, if_absent=True)
            if isinstance(result, Ok):
                return boundary.advance(snapshot, nonce)
            attempt = await self._back_off(attempt, layout.BOUNDARY_KEY, str(result))

    async def _delete_collected(self, boundary: Boundary) -> None:
        """Deletes the slots that the boundary has given up, and older snapshots that it does not name."""
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

    async def _back_off(self, attempt: int, key: str, why: str) -> int:
        """Waits with full jitter; returns the number of the next attempt."""
        self._retries.inc()
        self.last_error = f"{key}: {why}"
        seconds = self._stall_log.admit(is_start=attempt == 0)
        if seconds is not None:
            log.warning("metadata put undecided key=%s attempt=%d seconds=%d why=%s", key, attempt, seconds, why)
        shortest, longest = _BACKOFF_SECONDS
        await self._clock.sleep(min(longest, shortest * 2 ** min(attempt, 16)) * self._rng.random())
        return attempt + 1

    def _nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"
