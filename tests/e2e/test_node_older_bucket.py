"""Tests of a bucket that goes back to an older state (a replica that lags, a backup): brokers notice, and say so."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.site import SimBrokerRig, fill, numbers, read_values, run
from tiered.broker import metadata_position
from tiered.broker.data_directory import ROOT
from tiered.errors import Refused

LOCAL = {"remote_storage_enable": "false", "retention_ms": "-1"}
NOTE = f"{ROOT}/{metadata_position.FILE}"

Copy = tuple[dict[str, object], list[str]]


def copy_bucket(site: SimBrokerRig) -> Copy:
    return dict(site.bucket.memory._objects), list(site.bucket.memory._keys)


def put_back(site: SimBrokerRig, copy: Copy) -> None:
    """Puts the bucket back to an older state."""
    site.bucket.memory._objects.clear()
    site.bucket.memory._objects.update(copy[0])  # type: ignore[arg-type]
    site.bucket.memory._keys[:] = copy[1]


async def refuse_start(site: SimBrokerRig) -> None:
    with pytest.raises(Refused, match=f"the bucket went back to an older state.* remove {NOTE}"):
        await site.start()
    await site.stop()


@pytest.mark.parametrize("stopped", [True, False])
def test_start_with_an_older_bucket_is_refused_and_keeps_the_logs(stopped: bool) -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        await site.create("old", 1, **LOCAL)
        older = copy_bucket(site)
        replica = await site.create("new", 1, **LOCAL)
        await fill(replica, 20)
        await asyncio.sleep(0 if stopped else 6)
        await (site.stop() if stopped else site.crash(site.machine.kill))
        newer = copy_bucket(site)
        put_back(site, older)
        for _ in range(2):
            await refuse_start(site)
        put_back(site, newer)
        await site.start()
        assert await read_values(site.node.leader_replica("new", 0), 0) == numbers(0, 20)
        await site.stop()

    run(scenario)


def test_start_with_an_older_bucket_gives_no_producer_id_again() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        older = copy_bucket(site)
        await site.node.producer_ids.next_id()
        await asyncio.sleep(6)
        await site.crash(site.machine.kill)
        put_back(site, older)
        await refuse_start(site)

    run(scenario)


def test_start_with_an_older_bucket_gives_no_leader_epoch_again() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        await site.create("t", 1, **LOCAL)
        older = copy_bucket(site)
        for _ in range(3):
            await site.crash(site.machine.kill)
            await site.start()
        await site.crash(site.machine.kill)
        put_back(site, older)
        await refuse_start(site)

    run(scenario)


def test_start_goes_on_with_an_older_bucket_once_the_note_is_removed() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        await site.create("old", 1, **LOCAL)
        older = copy_bucket(site)
        await site.create("new", 1, **LOCAL)
        await site.stop()
        put_back(site, older)
        await refuse_start(site)
        site.machine.disk.remove(NOTE)
        await site.start()
        assert sorted(site.node.image.topics) == ["old"]
        await site.stop()
        await site.start()
        await site.stop()

    run(scenario)
