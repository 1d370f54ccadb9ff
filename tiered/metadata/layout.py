"""Keys and bodies of the metadata objects in the bucket (docs/internals/formats.md, "Metadata").

meta/FORMAT                     created once: version of all formats, cluster id
meta/log/<slot %020d>           created once: {slot, epoch, nonce, changes[]}, one group commit
meta/snap/<slot %020d>-<nonce>  immutable: the image at the end of `slot`
meta/boundary                   compare-and-swap, only grows: the valid snapshots, the void slots (M3)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from tiered.errors import Code, Corrupt, Refused
from tiered.metadata import changes as kinds
from tiered.metadata import image as images
from tiered.metadata.changes import Change
from tiered.metadata.image import Image
from tiered.object_store.envelope import seal, unseal
from tiered.value import value

T = TypeVar("T")

FORMAT_KEY = "meta/FORMAT"
BOUNDARY_KEY = "meta/boundary"
LOG_PREFIX = "meta/log/"
SNAPSHOT_PREFIX = "meta/snap/"
FORMAT_VERSION = 1
CREDENTIAL_BYTES = 16


def slot_key(slot: int) -> str:
    """Returns the key of a slot's entry."""
    return f"{LOG_PREFIX}{slot:020d}"


def snapshot_key(slot: int, nonce: str) -> str:
    """Returns the key of a snapshot. The nonce keeps snapshots of the same slot by two writers apart."""
    return f"{SNAPSHOT_PREFIX}{slot:020d}-{nonce}"


def slot_of(key: str) -> int:
    """Returns the slot in a key of the log or of a snapshot; -1 if the key is neither."""
    digits = key.rsplit("/", 1)[-1][:20]
    return int(digits) if len(digits) == 20 and digits.isdigit() else -1


class Format(NamedTuple):
    """Format and identity of the cluster in a bucket: written by the first broker, read by all later ones."""

    version: int
    cluster_id: str
    nonce: str

    @property
    def credential(self) -> bytes:
        """The 16 bytes that prove a broker to another broker of the cluster.

        They are derived from the nonce, which only readers of the bucket know. The cluster id is public.
        """
        return hashlib.sha256(f"tiered brokers {self.cluster_id} {self.nonce}".encode()).digest()[:CREDENTIAL_BYTES]


class Entry(NamedTuple):
    """One slot of the metadata log."""

    slot: int
    epoch: int
    nonce: str
    changes: tuple[Change, ...]
    cluster_id: str = ""
    """Empty in older entries."""

    def verify_cluster(self, cluster_id: str) -> None:
        """Raises `Refused` for an entry of another cluster: nothing may be written beside it or taken from it."""
        if self.cluster_id and cluster_id and self.cluster_id != cluster_id:
            raise wrong_cluster_error(slot_key(self.slot), self.cluster_id, cluster_id)


class SnapshotRef(NamedTuple):
    """A snapshot that the boundary names: the image after `slot`, stored at `key`."""

    slot: int
    key: str


@value
class Boundary:
    """Slots up to `collected`, inclusive, may be deleted; `snapshots`, oldest first, replace them.

    `sequence` only grows.
    """

    snapshots: tuple[SnapshotRef, ...] = ()
    collected: int = -1
    sequence: int = 0
    nonce: str = ""

    def advance(self, snapshot: SnapshotRef, nonce: str) -> Boundary:
        """Returns the boundary after `snapshot` was written: it keeps two snapshots, and slots after the older one."""
        kept = (*self.snapshots, snapshot)[-2:]
        collected = kept[0].slot if len(kept) == 2 else self.collected
        return Boundary(kept, max(collected, self.collected), self.sequence + 1, nonce)


def encode_format(value: Format) -> bytes:
    """Returns the body of `meta/FORMAT`."""
    return seal({"version": value.version, "cluster_id": value.cluster_id, "nonce": value.nonce})


def decode_format(data: bytes) -> Format:
    """Returns the format. Raises `Corrupt` if it is garbled.

    The caller refuses a newer version; of such a body only the version is read.
    """
    body = unseal(data, FORMAT_KEY)

    def build() -> Format:
        version = int(body["version"])
        if version > FORMAT_VERSION:
            return Format(version, "", "")
        return Format(version, str(body["cluster_id"]), str(body["nonce"]))

    return _build_or_corrupt(FORMAT_KEY, build)


def encode_entry(entry: Entry) -> bytes:
    """Returns the body of `meta/log/<slot>`."""
    changes = [kinds.to_json(change) for change in entry.changes]
    body: dict[str, Any] = {"slot": entry.slot, "epoch": entry.epoch, "nonce": entry.nonce, "changes": changes}
    if entry.cluster_id:
        body["cluster_id"] = entry.cluster_id
    return seal(body)


def decode_entry(data: bytes, slot: int) -> Entry:
    """Returns the entry. Raises `Corrupt` if it is garbled or names another slot than its key."""
    key = slot_key(slot)
    body = unseal(data, key)

    def build() -> Entry:
        changes = tuple(kinds.from_json(change) for change in body["changes"])
        cluster_id = str(body.get("cluster_id", ""))
        return Entry(int(body["slot"]), int(body["epoch"]), str(body["nonce"]), changes, cluster_id)

    entry = _build_or_corrupt(key, build)
    if entry.slot != slot:
        raise Corrupt(f"metadata entry says slot {entry.slot}", where=key)
    return entry


def wrong_cluster_error(key: str, found: str, own: str) -> Refused:
    """Returns the error that ends a broker of cluster `own`: its prefix was emptied or given to another cluster."""
    why = f"{key} belongs to cluster {found}, this broker to {own}: two clusters cannot share a prefix"
    return Refused(Code.INCONSISTENT_CLUSTER_ID, why)


def encode_boundary(boundary: Boundary) -> bytes:
    """Returns the body of `meta/boundary`."""
    return seal(
        {
            "snapshots": [{"slot": each.slot, "key": each.key} for each in boundary.snapshots],
            "collected": boundary.collected,
            "sequence": boundary.sequence,
            "nonce": boundary.nonce,
        }
    )


def decode_boundary(data: bytes) -> Boundary:
    """Returns the boundary. Raises `Corrupt` if it is garbled."""
    body = unseal(data, BOUNDARY_KEY)

    def build() -> Boundary:
        snapshots = tuple(SnapshotRef(int(each["slot"]), str(each["key"])) for each in body["snapshots"])
        return Boundary(snapshots, int(body["collected"]), int(body["sequence"]), str(body["nonce"]))

    return _build_or_corrupt(BOUNDARY_KEY, build)


def encode_snapshot(image: Image) -> bytes:
    """Returns the body of `meta/snap/<slot>-<nonce>`."""
    return seal(images.to_json(image))


def decode_snapshot(data: bytes, key: str) -> Image:
    """Returns the image. Raises `Corrupt` if it is garbled."""
    body = unseal(data, key)
    return _build_or_corrupt(key, lambda: images.from_json(body))


def apply_entries(image: Image, entries: Sequence[Entry]) -> Image:
    """Returns the image after `entries`, which follow it slot by slot.

    Raises `Corrupt` if an epoch is lower than the one before: the log forked.
    """
    epoch = image.controller_epoch
    for entry in entries:
        if entry.epoch < epoch:
            raise Corrupt(f"entry of epoch {entry.epoch} after epoch {epoch}", where=slot_key(entry.slot))
        epoch = entry.epoch
    changes = [change for entry in entries for change in entry.changes]
    try:
        return image.apply(changes, entries[-1].slot) if entries else image
    except Corrupt as error:
        where = f"{slot_key(entries[0].slot)}..{entries[-1].slot}"
        raise Corrupt(error.why, where=where) from None


def _build_or_corrupt(key: str, build: Callable[[], T]) -> T:
    try:
        return build()
    except Corrupt as error:
        raise Corrupt(error.why, where=key) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"is of another shape: {error}"
        raise Corrupt(f"the metadata object {what}", where=key) from None
