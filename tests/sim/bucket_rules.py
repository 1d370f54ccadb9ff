"""What must hold of the bucket at every moment, checked on each write that takes effect.

I20 an object never changes, I21 what is cold has no hole and no overlap, I22/I23 a manifest names only objects that are
there, I24 a metadata slot is written once, I25 controller epochs never go back; and, beyond them: an offset that a
manifest names stays in the same object for as long as it is named.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from tests.sim.store import SimBucket
from tiered.cold.manifest import Manifest, Node, SegmentEntry
from tiered.cold.manifest_codec import decode, decode_sub
from tiered.ids import PartitionId
from tiered.metadata.layout import decode_entry


class BucketRules:
    """Watches one bucket: every write is checked as it takes effect, against what is there at that moment."""

    def __init__(self, bucket: SimBucket) -> None:
        self._bucket = bucket
        self._seen = 0
        self._crc: dict[str, int] = {}
        self._home: dict[tuple[PartitionId, int], tuple[int, str]] = {}
        """(partition, base offset) -> (next offset, object) of every segment that a manifest ever named."""
        self._epochs: dict[int, int] = {}
        bucket.memory.observer = self._check

    def _check(self) -> None:
        written = self._bucket.written
        for key, body in written[self._seen :]:
            if key.endswith("/manifest"):
                self._manifest(decode(body, key))
            elif key.startswith("data/"):
                self._immutable(key, body)
            elif key.startswith("meta/log/"):
                self._slot(key, body)
        self._seen = len(written)

    def manifests(self) -> Iterator[Manifest]:
        """Every manifest as it stands now."""
        for key, stored in sorted(self._bucket.objects.items()):
            if key.endswith("/manifest"):
                yield decode(stored.data, key)

    def segments(self, manifest: Manifest) -> Iterator[SegmentEntry]:
        """The live segments of a manifest, sub-manifests opened, oldest first."""
        yield from self._open(manifest.nodes, manifest.log_start_offset)

    def unreferenced(self) -> list[str]:
        """Data objects that no manifest names."""
        named: set[str] = set()
        for manifest in self.manifests():
            named.add(f"data/{manifest.topic_id}/{manifest.partition}/manifest")
            named.update(node.key for node in manifest.nodes)
            named.update(entry.key for entry in self.segments(manifest))
            for spill in manifest.spilled:
                named.update(self._inside(spill.key))
        return sorted(key for key in self._bucket.objects if key.startswith("data/") and key not in named)

    def _immutable(self, key: str, body: bytes) -> None:
        crc = zlib.crc32(body)
        assert self._crc.setdefault(key, crc) == crc, f"I20: {key} was written twice with different bytes"

    def _manifest(self, manifest: Manifest) -> None:
        assert not manifest.fault(), f"I21: {manifest.pid}: {manifest.fault()}"
        for entry in manifest.entries:
            assert entry.key in self._bucket.objects, f"I23: {manifest.pid} names {entry.key}, which is not there"
            home = self._home.setdefault((manifest.pid, entry.base_offset), (entry.next_offset, entry.key))
            assert home == (entry.next_offset, entry.key), f"{manifest.pid} {entry.base_offset} moved from {home}"

    def _slot(self, key: str, body: bytes) -> None:
        slot = int(key.rpartition("/")[2])
        entry = decode_entry(body, slot)
        self._immutable(key, body)
        self._epochs[slot] = entry.epoch
        lower = [epoch for at, epoch in self._epochs.items() if at < slot]
        assert entry.epoch >= max(lower, default=0), f"I25: slot {slot} has epoch {entry.epoch} after {max(lower)}"

    def _open(self, nodes: tuple[Node, ...] | list[Node], start: int) -> Iterator[SegmentEntry]:
        for node in nodes:
            if node.next_offset <= start:
                continue
            if isinstance(node, SegmentEntry):
                yield node
            else:
                yield from self._open(self._sub(node.key), start)

    def _sub(self, key: str) -> list[Node]:
        return list(decode_sub(self._bucket.objects[key].data, key))

    def _inside(self, key: str) -> Iterator[str]:
        for node in self._sub(key):
            yield node.key
            if not isinstance(node, SegmentEntry):
                yield from self._inside(node.key)
