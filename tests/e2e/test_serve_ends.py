"""Test of a broker that ends by itself: it prints a reason in one line, like a refused start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.serving import SECONDS, ServeProcess
from tiered.metadata import layout
from tiered.object_store.directory import DirectoryStore
from tiered.system.clock import SystemClock, SystemRng


@pytest.mark.slow
def test_entry_of_another_cluster_ends_the_broker_with_one_line(tmp_path: Path) -> None:
    async def write_as_another(slot: int) -> None:
        store = DirectoryStore(str(tmp_path / "bucket"), SystemClock(), SystemRng())
        entry = layout.Entry(slot, 1, "n", (), "another-cluster")
        await store.put(layout.slot_key(slot), layout.encode_entry(entry), if_absent=True)
        await store.close()

    with ServeProcess(tmp_path / "data", "--store", f"file://{tmp_path}/bucket") as broker:
        slots = sorted(path.name for path in (tmp_path / "bucket" / "meta" / "log").iterdir())
        asyncio.run(write_as_another(layout.slot_of(f"{layout.LOG_PREFIX}{slots[-1]}") + 1))
        cluster = broker.ask("GET", "/tiered/v1/node")[1]["cluster_id"]
        broker.ask("POST", f"/v3/clusters/{cluster}/topics", {"topic_name": "t", "partitions_count": 1})
        assert broker.process.wait(SECONDS) == 1
        said = broker.log.read_text()
    assert said.splitlines()[-1].startswith("tiered: the broker failed: ") and "another-cluster" in said
    assert "Traceback" not in said
