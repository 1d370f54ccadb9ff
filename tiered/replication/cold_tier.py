"""The cold tier of one broker, which all its partitions share. Binds the parts and has no rule of its own."""

from __future__ import annotations

from dataclasses import dataclass

from tiered.cold.collector import Collector
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.cold.uploader import Uploader


@dataclass(frozen=True)
class ColdTier:
    """The parts of the cold tier, one of each per broker."""

    manifests: ManifestStore
    reader: ColdReader
    uploader: Uploader
    collector: Collector
