"""Bytes that the product has allocated, and those of one idle partition, connection, group member and producer."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import tiered
import tiered_api
from tests.sim.rig.broker_rig import SimBrokerRig, run
from tests.sim.rig.group_requests import GROUP_SETTINGS, join, sync, wait_groups_loaded
from tiered.config.listeners import Endpoint
from tiered.ports import Stream
from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol.apis import ALL_APIS, API_VERSIONS
from tiered_api.kafka.protocol.codec import encode
from tiered_api.kafka.protocol.headers import encode_request_header
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest
from tiered_api.kafka.server.server import serve_kafka

PRODUCT = tuple(str(Path(each.__path__[0])) for each in (tiered, tiered_api))
TESTS = str(Path(__file__).parent.parent)
FRAMES = 6
"""Frames of a trace of an allocation: enough to find the function of ours that caused it."""
MANY = 48


def measure_product() -> tuple[int, int]:
    """Returns the bytes and the blocks that the product has allocated, also through the standard library. Bytes of the
    simulated disk and bucket do not count."""
    gc.collect()
    size = blocks = 0
    for trace in tracemalloc.take_snapshot().traces:
        for frame in reversed(trace.traceback):
            if frame.filename.startswith(PRODUCT):
                size, blocks = size + trace.size, blocks + 1
            if frame.filename.startswith((*PRODUCT, TESTS)):
                break
    return size, blocks


Add = Callable[[int], Awaitable[None]]
"""Adds `MANY` of a kind; each call has a number of its own."""


async def things(rig: SimBrokerRig) -> dict[str, Add]:
    """Returns the kinds of things that a broker may have very many of."""
    server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "one", 0)})
    port = next(iter(server.addresses.values())).port
    produced, client = await rig.create("produced"), rig.network.host("client")
    streams: list[Stream] = []
    greeting = encode_request_header(ALL_APIS[API_VERSIONS], 4, 0, "counts") + encode(ApiVersionsRequest("a", "1"), 4)

    async def add_partitions(number: int) -> None:
        await rig.create(f"many-{number}", MANY)

    async def add_connections(number: int) -> None:
        for _ in range(MANY):
            stream = await client.connect("one", port, 5)
            streams.append(stream)
            stream.sendmsg([len(greeting).to_bytes(4, "big") + greeting])
        await asyncio.sleep(1)  # virtual: the replies are on their way

    async def add_members(number: int) -> None:
        for each in range(MANY):
            group = f"group-{number}-{each}"
            await sync(rig, group, await join(rig, group))

    async def add_producers(number: int) -> None:
        for each in range(MANY):
            records = [(1_700_000_000_000, None, b"v", ())]
            producer_id = number * MANY + each
            await produced.append(
                bytearray(encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0))
            )

    return {
        "partition": add_partitions,
        "connection": add_connections,
        "member of a group": add_members,
        "producer": add_producers,
    }


async def count_bytes(rig: SimBrokerRig, found: dict[str, float]) -> None:
    """Adds to `found` the bytes of one of each kind. The first of a kind also pay for what all of them share."""
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    for name, add in (await things(rig)).items():
        await add(0)
        before, _ = measure_product()
        await add(1)
        after, _ = measure_product()
        found[name] = round((after - before) / MANY)
    await rig.stop()


def count_bytes_of_each() -> dict[str, float]:
    """Returns the bytes of one idle thing of each kind."""
    found: dict[str, float] = {}

    async def scenario(rig: SimBrokerRig) -> None:
        await count_bytes(rig, found)

    tracemalloc.start(FRAMES)
    try:
        run(scenario)
    finally:
        tracemalloc.stop()
    return found
