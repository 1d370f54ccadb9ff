"""Tests of a warehouse on a bucket: the names of its tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from pyspark_tiered.delta.warehouse import Warehouse
from tests.fakes3 import FakeS3, s3_fake
from tests.s3_rules import BUCKET
from tiered.object_store.url import open_store
from tiered.system.clock import SystemClock, SystemRng

TABLES = ["a", "a-b", "orders", "orders-eu", "orders.x", "orders0", "orders_typed"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    with s3_fake() as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started


@pytest.mark.parametrize("folder_order", [False, True])
def test_names_are_complete_in_either_order_of_lists(server: FakeS3, *, folder_order: bool) -> None:
    """SeaweedFS lists a folder after the other, and `orders0` is not behind all folders whose names begin so."""
    server.rules.folder_order = folder_order

    async def fill() -> None:
        store = open_store(f"s3://{BUCKET}/wh", SystemClock(), SystemRng())
        for table in TABLES:
            for version in range(2):
                await store.put(f"{table}/_delta_log/{version:020d}.json", b"{}")
        await store.put("a.txt", b"no table")
        await store.close()

    asyncio.run(fill())
    with closing(Warehouse(f"s3://{BUCKET}/wh")) as warehouse:
        assert sorted(warehouse.names()) == TABLES
