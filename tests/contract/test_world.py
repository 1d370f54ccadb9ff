"""Tests of the real ports, built from settings."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from tiered.broker.real_world import real_world
from tiered.config.settings import Settings
from tiered.ports import GetResult, Ok


def test_broker_gets_its_disk_and_its_store(tmp_path: Path) -> None:
    settings = replace(Settings(), data_dir=str(tmp_path / "data"), store=f"file://{tmp_path}/store")
    world = real_world(settings)

    async def body() -> None:
        assert isinstance(await world.store.put("k", b"x", if_absent=True), Ok)
        assert isinstance(await world.store.get("k"), GetResult)
        file = world.disk.open("f", create=True)
        file.append([b"x"])
        await file.sync()
        await world.store.close()

    asyncio.run(body())
    assert (tmp_path / "data" / "f").read_bytes() == (tmp_path / "store" / "k").read_bytes() == b"x"


def test_default_bucket_is_a_directory_beside_the_log(tmp_path: Path) -> None:
    world = real_world(replace(Settings(), data_dir=str(tmp_path / "with space")))
    assert world.store.url == f"file://{tmp_path}/with space/bucket"
