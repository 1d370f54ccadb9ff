"""Tests of HTTP under faults: a full disk, an unreachable bucket, damaged bytes. The client gets an error with a
reason, and all that still works is served."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.e2e.http_site import RAW, HttpBroker, run, wait_until
from tests.scenario import run_by
from tests.sim.harness.disk import SimDisk
from tiered.object_store.faulty import Faults, faulty
from tiered.ports import World
from tiered.records.batch import encode_batch

PATH = "/topics/t/partitions/0/records"


def with_disk(disk: SimDisk) -> Callable[[World], World]:
    return lambda world: replace(world, disk=disk)


def record(text: str) -> dict[str, Any]:
    return {"value": {"type": "STRING", "data": text}}


def test_full_disk_refuses_records_and_serves_reads(tmp_path: Path) -> None:
    disk = SimDisk(random.Random(1))

    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        await site.produce("t", "before")
        disk.capacity = disk.space().total - disk.space().free
        post = f"{site.cluster}/topics/t/records"
        for n in range(3):
            refused = await site.ask("POST", post, record(f"lost {n}" * 1000))
            assert (refused.status, refused.json["error_code"]) == (500, 50003), refused
        raw = encode_batch([(site.broker.world.clock.wall_ms(), None, b"x" * 9000, ())])
        assert (await site.ask("POST", PATH, raw, kind=RAW)).json["error_code"] == 50003
        stream = await site.ask("POST", post, b'{"value":{"type":"STRING","data":"%b"}} ' % (b"y" * 9000) * 2)
        assert stream.body.count(b'"error_code":50003') == 2
        assert [each["value"] for each in (await site.get(PATH)).json["records"]] == ["before"]
        assert any("full" in problem for problem in (await site.get("/healthz")).json["problems"])
        disk.capacity = None
        assert (await site.ask("POST", post, record("after"))).json["offset"] == 1
        raw_read = await site.get(PATH, RAW)
        assert b"before" in raw_read.body and b"after" in raw_read.body

    run(tmp_path, scenario, ports=with_disk(disk))


def test_broker_without_its_bucket_serves_hot_records_and_gives_reasons(tmp_path: Path) -> None:
    faults = Faults(reply_seconds=0.01)

    def ports(world: World) -> World:
        return replace(world, store=faulty(world.store, faults, world.clock))

    async def scenario(site: HttpBroker) -> None:
        await site.create("t", 1, internal_segment_bytes="1024", local_retention_bytes="1")
        for n in range(30):
            await site.produce("t", f"{n:0100d}")
        replica = site.broker.leader_replica("t", 0)
        await wait_until(lambda: replica.local_start_offset > 0)
        faults.outage = True
        cold = await site.get(f"{PATH}?offset=0")
        assert (cold.status, cold.json["error_code"]) == (503, 50302), cold
        assert (await site.ask("POST", f"{site.cluster}/topics/t/records", record("hot"))).json["offset"] == 30
        hot = await site.get(f"{PATH}?offset=30")
        assert [each["value"] for each in hot.json["records"]] == ["hot"]
        problems = (await site.get("/healthz")).json["problems"]
        assert any("store unreachable" in problem for problem in problems)
        faults.outage = False
        while (cold := await site.get(f"{PATH}?offset=0")).status == 503:  # what failed is asked for after a pause
            await asyncio.sleep(0.05)
        assert cold.json["records"][0]["offset"] == 0

    run(tmp_path, scenario, ports=ports)


@run_by(run, "tmp_path")
async def test_internal_error_has_no_details(site: HttpBroker) -> None:
    await site.create("t")

    async def fail(*_: object) -> None:
        raise AttributeError("'Delta' object has no attribute 'x'")

    site.broker.hosted_replicas.apply_image = fail  # type: ignore[assignment]
    answers = [await site.ask("POST", f"{site.cluster}/topics", {"topic_name": "n"})]
    await site.broker.ended.wait()
    answers.append(await site.ask("POST", f"{site.cluster}/topics/t/records", record("x")))
    answers.append(await site.get(PATH))
    health = await site.get("/healthz")
    assert health.status == 503 and "see the broker's log" in health.json["problems"][0]
    for answer in (*answers, health):
        assert answer.status >= 500 and b"Error" not in answer.body and b"Delta" not in answer.body, answer


@run_by(run, "tmp_path")
async def test_damaged_bytes_are_reported_and_never_served(site: HttpBroker, *, tmp_path: Path) -> None:
    await site.create("t")
    await site.produce("t", "a", "b")
    (log,) = tmp_path.glob("log/t-0/*.log")
    data = bytearray(log.read_bytes())
    data[data.index(b"b")] ^= 1
    log.write_bytes(data)
    for accept in ("application/json", "application/vnd.kafka.binary.v2+json", "text/event-stream"):
        flipped = await site.get(PATH, accept)
        assert (flipped.status, flipped.json["error_code"]) == (500, 50002)
    data[61:] = b"\xff" * len(data[61:])
    log.write_bytes(data)
    answer = await site.get(PATH)
    assert (answer.status, answer.json["error_code"]) == (500, 50002)
    assert "stored data is corrupt" in answer.json["message"] and str(tmp_path) not in answer.json["message"]
    log.write_bytes(data[:70])
    cut = await site.get(PATH)
    assert (cut.status, cut.json["error_code"]) == (500, 50002)
