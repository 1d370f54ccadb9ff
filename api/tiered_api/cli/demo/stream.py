"""The demo's produce: all records through one streaming request of REST v3, and the outcome of each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import aiohttp
import orjson

from tiered.errors import Unavailable
from tiered_api.cli.demo.broker import DemoBroker
from tiered_api.cli.demo.flights import Departure

PIECE_RECORDS = 200

RecordNumbers = dict[int, list[int]]
"""By partition: for each offset from 0 on, the number of its record."""


async def produce_records(
    broker: DemoBroker, cluster_id: str, topic: str, records: Sequence[Departure], done: Callable[[int], None]
) -> RecordNumbers:
    """Sends all records; calls `done(n)` for n more reports. Raises `Unavailable` if a report is bad or offsets are
    missing."""
    placed: RecordNumbers = {}
    number = 0
    url = f"{broker.url}/v3/clusters/{cluster_id}/topics/{topic}/records"
    headers = {"Content-Type": "application/json"}
    async with broker.session.post(url, data=_pieces(records), headers=headers) as response:
        if response.status != 200:
            raise Unavailable(f"produce: {response.status} {await response.text()}")
        async for lines in _line_blocks(response.content):
            for line in lines:
                _note_offset(placed, number, orjson.loads(line))
                number += 1
            done(len(lines))
    if number != len(records):
        raise Unavailable(f"{len(records)} records were sent and {number} reports came back")
    return placed


def _note_offset(placed: RecordNumbers, number: int, report: dict[str, object]) -> None:
    """Notes the offset of a record. This demo is the only producer, so offsets follow each other."""
    if report["error_code"] != 200:
        raise Unavailable(f"record {number} was refused: {report}")
    partition, offset = report["partition_id"], report["offset"]
    assert isinstance(partition, int) and isinstance(offset, int)
    numbers = placed.setdefault(partition, [])
    if offset != len(numbers):
        raise Unavailable(f"record {number} got offset {offset} of partition {partition} where {len(numbers)} was next")
    numbers.append(number)


async def _pieces(records: Sequence[Departure]) -> AsyncIterator[bytes]:
    for start in range(0, len(records), PIECE_RECORDS):
        yield b"".join(record.to_produce_json() for record in records[start : start + PIECE_RECORDS])


async def _line_blocks(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    rest = b""
    async for block in content.iter_any():
        *lines, rest = (rest + block).split(b"\n")
        yield [line for line in lines if line]
    if rest:
        yield [rest]
