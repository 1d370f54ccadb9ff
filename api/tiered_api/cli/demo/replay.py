"""The demo's proof: waits until no record is local, reads all through the broker, and compares record by record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiered.errors import Corrupt, Unavailable
from tiered.records.batch import decode_header
from tiered.records.native import walk
from tiered.records.pieces import iterate_records
from tiered_api.cli.demo.broker import DemoBroker
from tiered_api.cli.demo.flights import Departure
from tiered_api.cli.demo.stream import RecordNumbers

COLD_SECONDS = 60.0
POLL_SECONDS = 0.2
FETCH_BYTES = 8 << 20


@dataclass
class StorageTotals:
    """Bytes of a topic by place, summed over its partitions."""

    local_bytes: int = 0
    cold_bytes: int = 0
    cold_segments: int = 0


async def wait_until_cold(broker: DemoBroker, topic: str, partitions: int) -> StorageTotals:
    """Returns when every record is in the bucket and no local copy is left. Unavailable after a minute."""
    try:
        async with asyncio.timeout(COLD_SECONDS):
            while True:
                states = await partition_states(broker, topic, partitions)
                if all(_is_cold(state) for state in states):
                    return sum_states(states)
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        left = [state for state in await partition_states(broker, topic, partitions) if not _is_cold(state)]
        raise Unavailable(f"not everything was cold within {COLD_SECONDS:.0f} s: {left}") from None


async def partition_states(broker: DemoBroker, topic: str, partitions: int) -> list[dict[str, Any]]:
    """Returns the broker's state of each partition."""
    paths = (f"/tiered/v1/topics/{topic}/partitions/{number}" for number in range(partitions))
    return list(await asyncio.gather(*(broker.send_request("GET", path) for path in paths)))


def sum_states(states: Sequence[dict[str, Any]]) -> StorageTotals:
    """Returns the sum over all partitions."""
    return StorageTotals(
        sum(state["local_bytes"] for state in states),
        sum(state["cold_bytes"] for state in states),
        sum(state["cold_segments"] for state in states),
    )


async def replay(
    broker: DemoBroker, topic: str, sent: Sequence[Departure], placed: RecordNumbers, done: Callable[[int], None]
) -> int:
    """Reads every partition from offset 0 as whole record batches and compares each record with the one that was sent:
    key, timestamp and value. Returns the bytes read. Raises `Corrupt` with the first difference."""
    sizes = await asyncio.gather(
        *(_replay_partition(broker, topic, number, sent, numbers, done) for number, numbers in sorted(placed.items()))
    )
    return sum(sizes)


async def _replay_partition(
    broker: DemoBroker,
    topic: str,
    partition: int,
    sent: Sequence[Departure],
    numbers: Sequence[int],
    done: Callable[[int], None],
) -> int:
    offset = size = 0
    while offset < len(numbers):
        data = await _fetch(broker, topic, partition, offset)
        found = walk(data)
        if found.why or not found.batches:
            raise Corrupt(f"{topic}-{partition} at offset {offset}: {found.why or 'no batch'}")
        for batch in found.batches:
            for record in iterate_records(data, batch.position, decode_header(data, batch.position)):
                expected = sent[numbers[record.offset]] if record.offset < len(numbers) else None
                if expected is None or (record.key, record.timestamp, record.value) != expected:
                    raise Corrupt(f"{topic}-{partition} offset {record.offset} holds {record}, not {expected}")
        following = found.batches[-1].last_offset + 1
        counted = sum(batch.count for batch in found.batches)
        if found.batches[0].base_offset != offset or counted != following - offset:
            raise Corrupt(f"{topic}-{partition}: {counted} records in offsets {offset} to {following}")
        done(counted)
        offset, size = following, size + len(data)
    return size


async def _fetch(broker: DemoBroker, topic: str, partition: int, offset: int) -> bytes:
    url = f"{broker.url}/topics/{topic}/partitions/{partition}/records"
    query = {"offset": str(offset), "max_bytes": str(FETCH_BYTES), "timeout": "0"}
    async with broker.session.get(url, params=query, headers={"Accept": "application/octet-stream"}) as response:
        if response.status != 200:
            raise Unavailable(f"read of {topic}-{partition} at {offset}: {response.status} {await response.text()}")
        return await response.read()


def _is_cold(state: dict[str, Any]) -> bool:
    return bool(
        state["cold_end_offset"] == state["high_watermark"]
        and state["local_start_offset"] == state["high_watermark"]
        and state["local_bytes"] == 0
    )
