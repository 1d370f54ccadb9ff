"""The note in the data directory of what the metadata log had reached: it tells a bucket that went back.

Slots, controller epochs and producer ids of the metadata log only grow. A bucket with less than the note has lost
entries that brokers acted on: a start with it would give epochs and producer ids twice, and delete logs of topics that
it does not know.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused
from tiered.metadata import layout
from tiered.metadata.image import Image
from tiered.object_store.envelope import seal, unseal

FILE = "metadata-position"


class MetadataPosition(NamedTuple):
    """The position that the metadata log of a cluster has reached."""

    cluster_id: str
    slot: int
    controller_epoch: int
    next_producer_id: int
    metadata_version: int = 0
    """The level of `tiered.metadata.version`, which is never lowered; 0 in a note of an earlier program."""

    def __str__(self) -> str:
        return f"slot {self.slot}, controller epoch {self.controller_epoch}, next producer id {self.next_producer_id}"


def get_position(cluster_id: str, image: Image) -> MetadataPosition:
    """Returns the position of a committed image."""
    return MetadataPosition(
        cluster_id, image.slot, image.controller_epoch, image.next_producer_id, image.metadata_version
    )


def encode(position: MetadataPosition) -> bytes:
    """Returns the content of the file."""
    return seal(position._asdict())


def parse(data: bytes, *, where: str = "") -> MetadataPosition:
    """Returns the position in the file. Raises `Corrupt` if it is damaged."""
    body = unseal(data, where)
    try:
        return MetadataPosition(
            str(body["cluster_id"]), int(body["slot"]), int(body["controller_epoch"]), int(body["next_producer_id"]),
            int(body.get("metadata_version", 0)),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        raise Corrupt("the position of the metadata log lacks a number", where=where) from None


def refuse_older(found: MetadataPosition, noted: MetadataPosition, path: str) -> None:
    """Raises `Refused` if the metadata log in the bucket is below the note in the file `path`. The note of another
    cluster says nothing."""
    pairs = zip(found[1:4], noted[1:4], strict=True)
    if found.cluster_id == noted.cluster_id and any(there < here for there, here in pairs):
        raise Refused(
            Code.INCONSISTENT_CLUSTER_ID,
            f"the bucket went back to an older state: its metadata log is at {found}, and this data directory has seen"
            f" {noted}: put the newer state of the bucket back, or the one object of the metadata log that is missing"
            f" ({layout.slot_key(found.slot + 1)}); to go on without it, and lose what it had, remove"
            f" {path} from the data directory",
        )
