"""Tests of batches that compress well, as monotonous logs make them: produced, read over HTTP in parts, and consumed by
librdkafka and by our own consumer."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.e2e.serving import ServeProcess, run_tiered
from tests.seeds import chosen
from tiered.records.batch import encode_batch
from tiered.records.model import Codec

COUNT = 20_000
LINE = b"2026-11-29T12:00:00.000Z INFO all is well and there is nothing to report " * 60
FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path_factory.mktemp("large") / "data") as one:
        yield one


def post(served: ServeProcess, topic: str, data: bytes) -> int:
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=120)
    headers = {"Content-Type": "application/octet-stream"}
    connection.request("POST", f"/topics/{topic}/partitions/0/records", data, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def consume(served: ServeProcess, topic: str, count: int) -> list[tuple[int | None, bytes | None]]:
    """Returns (offset, value) of the first `count` records, from librdkafka."""
    consumer = Consumer({"bootstrap.servers": served.kafka, "group.id": "g", "fetch.message.max.bytes": 4 << 20})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[tuple[int | None, bytes | None]] = []
    ends = time.monotonic() + 60
    while len(found) < count and time.monotonic() < ends:
        for message in consumer.consume(5000, 1.0):
            assert message.error() is None, message.error()
            found.append((message.offset(), message.value()))
    consumer.close()
    return found


@pytest.mark.parametrize("codec", chosen([Codec.GZIP, Codec.LZ4, Codec.ZSTD], [Codec.ZSTD]))
def test_batch_of_a_monotonous_log_is_taken_and_read_by_all(served: ServeProcess, codec: Codec) -> None:
    topic = f"lines-{codec.name.lower()}"
    served.create_topic(topic)
    lines = [(FIRST_MS + number, None, LINE, ()) for number in range(COUNT)]
    data = encode_batch(lines, codec=codec)
    assert len(data) * 100 < COUNT * len(LINE) and len(data) < 1 << 20
    assert post(served, topic, data) == 200
    assert post(served, topic, encode_batch([(FIRST_MS + COUNT, None, b"last", ())])) == 200
    expected = [*((number, LINE) for number in range(COUNT)), (COUNT, b"last")]
    assert consume(served, topic, COUNT + 1) == expected

    offset, seen = 0, 0
    while offset <= COUNT:
        path = f"/topics/{topic}/partitions/0/records?offset={offset}&max_bytes=4194304"
        status, body = served.ask("GET", path)
        assert status == 200 and body["next_offset"] > offset
        assert [each["offset"] for each in body["records"]] == [*range(offset, body["next_offset"])]
        seen, offset = seen + len(body["records"]), body["next_offset"]
    assert seen == COUNT + 1

    where = ("-X", f"brokers={served.kafka}")
    printed = run_tiered("topic", "consume", topic, *where, "-o", ":end", "-f", "%o\\n")
    assert printed.returncode == 0, printed.stderr
    assert [int(line) for line in printed.stdout.splitlines()] == [*range(COUNT + 1)]
