"""The real ports, put together: clock, random numbers and sockets of this machine, its disk, and a store by URL."""

from __future__ import annotations

from urllib.parse import quote

from tiered.config.settings import Settings
from tiered.object_store.url import open_store
from tiered.ports import World
from tiered.system.clock import SystemClock, SystemRng
from tiered.system.local_disk import LocalDisk, allow_open_files
from tiered.system.network import SocketNet

EMBEDDED_BUCKET = "bucket"  # the store of a broker that is given none: a folder of its data directory


def real_world(settings: Settings) -> World:
    """The five ports of a broker on this machine, by its settings."""
    allow_open_files()
    clock, rng = SystemClock(), SystemRng()
    disk = LocalDisk(settings.data_dir)
    store = settings.store or f"file://{quote(disk.root)}/{EMBEDDED_BUCKET}"
    return World(clock, rng, disk, open_store(store, clock, rng), SocketNet())
