"""The five real ports of a broker: clock, random numbers, disk and sockets of this machine, and a store by URL."""

from __future__ import annotations

import logging
from urllib.parse import quote

from tiered.config.settings import Settings
from tiered.object_store.url import open_store
from tiered.ports import World
from tiered.system.clock import SystemClock, SystemRng
from tiered.system.local_disk import LocalDisk, allow_open_files
from tiered.system.network import SocketNet

log = logging.getLogger(__name__)

EMBEDDED_BUCKET = "bucket"
"""Folder of the data directory that is the store if the settings name none."""


def real_world(settings: Settings) -> World:
    """Returns the ports of a broker on this machine, by its settings."""
    allow_open_files()
    clock, rng = SystemClock(), SystemRng()
    disk = LocalDisk(settings.data_dir)
    store = settings.store or f"file://{quote(disk.root)}/{EMBEDDED_BUCKET}"
    opened = open_store(store, clock, rng, keys_file=settings.tiered_encryption_keys_file)
    if opened.has_keys:
        log.info("the bucket is encrypted active_key=%s", opened.active_key_id or "none: new objects are plain")
    return World(clock, rng, disk, opened, SocketNet())
