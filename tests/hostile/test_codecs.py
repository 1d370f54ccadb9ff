"""Tests of what tenants make the broker compress, and of what they make it show as JSON: each codec at each limit of
its level by each way to write, and each shape of a value by each way to read.

The lists come from the tables of the broker: a new codec, operation or media type without an attack fails a test.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.attacks import attack
from tests.hostile.target import AttackedBroker, scale
from tests.hostile.test_records import now_ms, produce
from tests.seeds import chosen
from tiered.config.settings import Settings, topic_rows
from tiered.config.topic_limits import LIMITS
from tiered.records.batch import encode_batch
from tiered.records.model import Codec, Header
from tiered_api.http.consumers.instance import FORMATS
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.metering import READS, WRITES
from tiered_api.http.partitions.produce import CODECS
from tiered_api.http.partitions.reads import ISOLATION_LEVELS
from tiered_api.http.partitions.record_json import FORMS
from tiered_api.http.partitions.records import READ_TYPES
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig

VALUE_BYTES = scale(100_000, 8_000_000)
"""Bytes of a value that is compressed. Below and above INLINE_BYTES there is a value each."""
SMALL_BYTES = 60_000
SHOWN_BYTES = scale(1_500_000, 16_000_000)
"""Bytes of a value that is read back."""
CALLERS, READERS = scale(2, 6), scale(2, 3)
READ_SECONDS = scale(300, 2_000) / 1000
"""Most CPU time of the broker for one read, on average."""

Request = tuple[str, str, Any]
"""Path, content type and body."""


def call(to: AttackedBroker, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    """Returns status and the start of a reply. An event stream is closed after its first bytes."""
    connection = to.http()
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, None if body is None else json.dumps(body).encode(), named)
        response = connection.getresponse()
        start = response.read(1000)
        while headers.get("Accept") != media_types.EVENTS and response.read(1 << 20):
            pass
        return response.status, start
    finally:
        connection.close()


# -- what is compressed -----------------------------------------------------------------------------------------------


def levels_of(codec: str) -> list[str]:
    """Returns the lowest level of a codec, and the highest that the limits of brokers allow."""
    name = f"compression.{codec}.level"
    row = topic_rows().get(name)
    if row is None:
        return [""]
    return [str(row.low), str(LIMITS[name][1](Settings()))]


LEVELS = [(codec, level) for codec in CODECS for level in levels_of(codec)]
LETTERS = {"gzip": "ab", "snappy": "ab", "lz4": "ab", "zstd": "0123456789abcdef"}
"""The letters of the slowest data for each codec."""


def v3_record(value: str, **more: Any) -> dict[str, Any]:
    return {"partition_id": 0, "value": {"type": "STRING", "data": value}, **more}


WRITE_WAYS: dict[str, Callable[[str, str, str], Request]] = {
    "v2_produce_to_topic": lambda _, topic, value: (
        f"/topics/{topic}", media_types.V2_JSON, {"records": [{"value": value}]},
    ),
    "v2_produce_to_partition": lambda _, topic, value: (
        f"/topics/{topic}/partitions/0", media_types.V2_JSON, {"records": [{"value": value}]},
    ),
    "v3_produce_records": lambda cluster, topic, value: (
        f"/v3/clusters/{cluster}/topics/{topic}/records", media_types.JSON, v3_record(value),
    ),
    "v3_produce_batch": lambda cluster, topic, value: (
        f"/v3/clusters/{cluster}/topics/{topic}/records:batch", media_types.JSON,
        {"entries": [v3_record(value, id="1")]},
    ),
    "commit_transaction": lambda _, topic, value: (
        "/tiered/v1/transactions", media_types.JSON, {"records": [v3_record(value, topic_name=topic)]},
    ),
}  # fmt: skip
WRITTEN_AS_SENT = {"write_batches"}
"""Operations whose batches the client compresses."""


@cache
def slow_text(codec: str, size: int) -> str:
    return "".join(random.Random(5).choices(LETTERS[codec], k=size))


def test_each_way_to_write_and_each_codec_has_an_attack() -> None:
    assert WRITE_WAYS.keys() | WRITTEN_AS_SENT == WRITES
    assert LETTERS.keys() == CODECS.keys()
    assert {name for name in topic_rows() if name.startswith("compression.") and name.endswith(".level")} == {
        name for name in LIMITS if name.startswith("compression.")
    }


@pytest.mark.parametrize(("codec", "level"), chosen(LEVELS, [("snappy", ""), LEVELS[-1]]))
@attack()
async def test_compression_of_one_tenant_delays_no_other(to: AttackedBroker, codec: str, level: str) -> None:
    configs = {"max.message.bytes": str(Settings().tiered_max_message_bytes_max), "compression.type": codec}
    if level:
        configs[f"compression.{codec}.level"] = level
    topic = CreatableTopic(to.name("t"), 1, 1, configs=[CreatableTopicConfig(*each) for each in configs.items()])
    await to.create(topic)
    cluster = to.ask("GET", "/tiered/v1/node")[1]["cluster_id"]
    async with to.attack(f"compression by {codec} {level}", memory=scale(150, 400)):
        for make in WRITE_WAYS.values():
            for size in (SMALL_BYTES, VALUE_BYTES):
                path, kind, body = make(cluster, to.name("t"), slow_text(codec, size))
                sent = [asyncio.to_thread(call, to, "POST", path, body, Content_Type=kind) for _ in range(CALLERS)]
                for status, start in await asyncio.gather(*sent):
                    assert status in (200, 207), start
                    assert b'"offset' in start and b'"failures":[{' not in start, start


# -- what is shown ----------------------------------------------------------------------------------------------------

Parts = tuple[bytes, tuple[Header, ...], int]
"""Value and headers of a record, and the number of such records."""

SHAPES: dict[str, Callable[[int], Parts]] = {
    "deep": lambda size: (b"[" * (size // 2) + b"]" * (size // 2), (), 1),
    "deep objects": lambda size: (b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6), (), 1),
    "wide list": lambda size: (b"[" + b"[]," * (size // 3) + b"[]]", (), 1),
    "wide object": lambda size: (b"{" + b",".join(b'"%d":1' % n for n in range(size // 12)) + b"}", (), 1),
    "many long names": lambda size: (b"{" + b",".join(b'"%0100d":1' % n for n in range(size // 106)) + b"}", (), 1),
    "long number": lambda size: (b"1" * size, (), 1),
    "many numbers": lambda size: (b"[" + b",".join([b"2.2250738585072011e-308"] * (size // 24)) + b"]", (), 1),
    "long text": lambda size: (b'"' + b"x" * size + b'"', (), 1),
    "wide text": lambda size: (b'"' + (b"a" * 1000 + "😀".encode()) * (size // 1004) + b'"', (), 1),
    "escapes": lambda size: (b'"' + b"\\n" * (size // 2) + b'"', (), 1),
    "escaped controls": lambda size: (b'"' + b"\\u0001" * (size // 6) + b'"', (), 1),
    "controls": lambda size: (b"\x01" * size, (), 1),
    "no text": lambda size: (b"\xff" * size, (), 1),
    "many headers": lambda size: (b"1", (("h", b"v"),) * min(size // 10, 99_000), 1),
    "many records": lambda size: (b"1", (), size // 30),
    "many lists": lambda size: (b"[" + b"[]," * 30_000 + b"[]]", (), size // 90_000),
}


CONSUMER_TYPES = {
    "binary": media_types.V2_BINARY, "json": media_types.V2_JSON, "avro": media_types.V2_AVRO,
    "jsonschema": media_types.V2_JSONSCHEMA, "protobuf": media_types.V2_PROTOBUF,
}  # fmt: skip
"""Media types of the formats of consumers."""


def read_ways() -> Iterator[tuple[str, str, str]]:
    """Yields operation, media type and query of each way to read."""
    for kind in READ_TYPES:
        for form in FORMS if kind in (media_types.JSON, media_types.EVENTS) else [""]:
            yield "read_records", kind, f"&format={form}" if form else ""
    for isolation in ISOLATION_LEVELS:
        yield "read_records", media_types.V2_BINARY, f"&isolation_level={isolation}"
    for name in FORMATS:
        yield "v2_read_consumer", CONSUMER_TYPES[name], ""


def test_each_way_to_read_has_an_attack() -> None:
    assert {operation for operation, _, _ in read_ways()} == READS
    assert {kind for operation, kind, _ in read_ways() if operation == "read_records"} == set(READ_TYPES)


def read_by_consumer(to: AttackedBroker, name: str, topic: str, kind: str) -> tuple[int, bytes]:
    """Reads the first record by a new consumer of REST v2."""
    base, made = f"/consumers/{name}", {"Content_Type": media_types.V2}
    (form,) = (name for name, each in CONSUMER_TYPES.items() if each == kind)
    status, _ = call(to, "POST", base, {"name": "c", "format": form, "auto.offset.reset": "earliest"}, **made)
    assert status == 200
    assigned = {"partitions": [{"topic": topic, "partition": 0}]}
    assert call(to, "POST", f"{base}/instances/c/assignments", assigned, **made)[0] == 204
    found = call(to, "GET", f"{base}/instances/c/records?timeout=20000", Accept=kind)
    assert call(to, "DELETE", f"{base}/instances/c", **made)[0] == 204
    return found


@pytest.mark.parametrize("shape", chosen(SHAPES, ("deep", "wide list", "escapes", "no text")))
@attack()
async def test_record_of_any_shape_is_shown_in_little_memory_and_time(to: AttackedBroker, shape: str) -> None:
    value, headers, count = SHAPES[shape](SHOWN_BYTES)
    sized = [CreatableTopicConfig("max.message.bytes", str(Settings().tiered_max_message_bytes_max))]
    await to.create(CreatableTopic(to.name("t"), 1, 1, configs=sized))
    batch = bytearray(encode_batch([(now_ms(), None, value, headers)] * count, codec=Codec.NONE))
    assert await produce(await to.client(), to.name("t"), (0, batch)) == [0]
    del batch
    spent = cpu_seconds(to)
    async with to.attack(f"shown: {shape}", memory=scale(100, 400)):
        for number, (operation, kind, query) in enumerate(read_ways()):
            if operation == "v2_read_consumer":
                reads = [
                    asyncio.to_thread(read_by_consumer, to, f"g{number}-{n}", to.name("t"), kind)
                    for n in range(READERS)
                ]
            else:
                path = f"/topics/{to.name('t')}/partitions/0/records?offset=0{query}"
                reads = [asyncio.to_thread(call, to, "GET", path, Accept=kind) for _ in range(READERS)]
            for status, start in await asyncio.gather(*reads):
                assert status == 200 or (status, b"42203" in start) == (422, True), (kind, query, start)
    assert cpu_seconds(to) - spent < READ_SECONDS * READERS * len([*read_ways()])


def cpu_seconds(to: AttackedBroker) -> float:
    """Returns the CPU time of the broker."""
    fields = Path(f"/proc/{to.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
