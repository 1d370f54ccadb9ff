"""Records into partitions: which one, in which batch, and what became of each. HTTP produce always means acks=all."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.image import TopicImage
from tiered.metadata.topic_names import INTERNAL, check_writable
from tiered.records.batch import HEADER_BYTES, Codec, encode_batch
from tiered.records.partitioner import partition_of
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import (
    EXPECTED_ERRORS,
    PARTITION_NOT_FOUND,
    TOPIC_NOT_FOUND,
    HttpError,
    to_http_error,
)
from tiered_api.http.partitions.record_formats import ProducerRecord
from tiered_api.http.partitions.remote_partition import AnyPartition, RemotePartition, open_partition

RECORD_OVERHEAD = 32
"""Most bytes that a record takes beside its key, value and headers (five varints, attributes)."""

RECORDS_PER_TURN = 5_000
"""Records of one request that are dealt with before others get their turn."""

LZ4_FAST = 9
"""The level by which Kafka means no level at all."""
CODECS = {"gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}

keyless_counter = itertools.count()
"""Keyless records of one request stay together; the next request's go to the next partition."""

_BATCH = re.compile(r"batch at byte \d+: ")
"""How the log begins a refusal."""
SINGLE_RECORD_CODES = (Code.INVALID_TIMESTAMP, Code.INVALID_RECORD, Code.MESSAGE_TOO_LARGE)
"""Refusals of a batch that one record may have caused: the others are tried again without it."""


class RecordMetadata(NamedTuple):
    """Where a record is now, and the timestamp that it has there."""

    partition: int
    offset: int
    timestamp: int


def find_topic(context: HttpContext, name: str) -> TopicImage:
    """The topic; HttpError 404 when there is none."""
    topic = context.broker.image.topics.get(name)
    if topic is None:
        raise HttpError(TOPIC_NOT_FOUND, f"topic {name[:249]!r} not found")
    return topic


def find_partition(context: HttpContext, topic: TopicImage, partition: int) -> AnyPartition:
    """The partition, wherever it is led; HttpError 404 when the topic has no such partition."""
    if not 0 <= partition < len(topic.partitions):
        raise HttpError(PARTITION_NOT_FOUND, f"topic {topic.name!r} has no partition {partition}")
    return open_partition(context, TopicPartition(topic.name, partition), topic.topic_id)


def choose_partition(record: ProducerRecord, partitions: int, counter: int) -> int:
    """The partition a record goes to: as asked, by its key as Kafka's default partitioner, or in turn."""
    if record.partition is not None:
        return record.partition
    if record.key is not None:
        return partition_of(record.key, partitions)
    return counter % partitions


async def append_one(context: HttpContext, topic: TopicImage, record: ProducerRecord) -> RecordMetadata:
    """One record, one batch. Raises what refuses it."""
    check_writable(topic.name)
    partition = choose_partition(record, len(topic.partitions), next(keyless_counter))
    return (await _append(context, find_partition(context, topic, partition), [record]))[0]


def append_locally(
    context: HttpContext, topic: TopicImage, partition: int, record: ProducerRecord
) -> RecordMetadata | None:
    """One record into a partition that answers in the same turn of the loop; None, and nothing done, when this one does
    not. Raises what refuses the record."""
    if not 0 <= partition < len(topic.partitions) or topic.name in INTERNAL:
        return None
    replica = context.broker.leader_replica(topic.name, partition)
    if replica.topic_id != topic.topic_id or not replica.commits_on_append:
        return None
    step = _append(context, replica, [record])
    try:
        step.send(None)
    except StopIteration as done:
        placed: list[RecordMetadata] = done.value
        return placed[0]
    step.close()
    raise AssertionError(f"the append to {topic.name}-{partition} waits, though nobody else is in sync")


async def append_many(
    context: HttpContext, topic: TopicImage, records: Sequence[ProducerRecord]
) -> list[RecordMetadata | HttpError]:
    """One batch per partition, more only where one would be too large; what became of each record, in order."""
    check_writable(topic.name)
    counter = next(keyless_counter)
    if len(records) <= RECORDS_PER_TURN:
        return await _append_chunk(context, topic, records, counter)
    outcomes: list[RecordMetadata | HttpError] = []
    for start in range(0, len(records), RECORDS_PER_TURN):
        outcomes += await _append_chunk(context, topic, records[start : start + RECORDS_PER_TURN], counter)
        await asyncio.sleep(0)
    return outcomes


async def _append_chunk(
    context: HttpContext, topic: TopicImage, records: Sequence[ProducerRecord], counter: int
) -> list[RecordMetadata | HttpError]:
    outcomes: list[RecordMetadata | HttpError] = [_UNKNOWN] * len(records)
    count = len(topic.partitions)
    groups: dict[int, list[int]] = {}
    for n, record in enumerate(records):
        groups.setdefault(choose_partition(record, count, counter), []).append(n)
    remote = []
    for partition, numbers in groups.items():
        try:
            source = find_partition(context, topic, partition)
            share = _PartitionRecords(
                source, numbers, min(source.config.max_message_bytes, source.config.segment_bytes)
            )
        except EXPECTED_ERRORS as error:
            for n in numbers:
                outcomes[n] = to_http_error(error)
            continue
        if isinstance(source, RemotePartition):
            remote.append(share)
        else:
            await _append_partition(context, share, records, outcomes)
    if remote:  # each waits for another broker
        await asyncio.gather(*(_append_partition(context, share, records, outcomes) for share in remote))
    return outcomes


class _PartitionRecords(NamedTuple):
    """The records of one partition, by their numbers, and how large a batch may be."""

    source: AnyPartition
    numbers: list[int]
    limit: int


async def _append_partition(
    context: HttpContext,
    share: _PartitionRecords,
    records: Sequence[ProducerRecord],
    outcomes: list[RecordMetadata | HttpError],
) -> None:
    for batch in batches(records, share.numbers, share.limit):
        placed = await _append_batch(context, share.source, [records[n] for n in batch])
        for n, outcome in zip(batch, placed, strict=True):
            outcomes[n] = outcome


_UNKNOWN = HttpError(500, "internal error")


def batches(records: Sequence[ProducerRecord], numbers: Iterable[int], limit: int) -> Iterable[list[int]]:
    """`numbers` in runs whose records make a batch of at most `limit` bytes; one too large for that is alone."""
    run: list[int] = []
    size = HEADER_BYTES
    for n in numbers:
        more = max_record_size(records[n])
        if run and size + more > limit:
            yield run
            run, size = [], HEADER_BYTES
        run.append(n)
        size += more
    if run:
        yield run


def max_record_size(record: ProducerRecord) -> int:
    """An upper bound of a record's bytes in a batch."""
    size = RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += 10 + 4 * len(name) + len(value or b"")
    return size


async def _append_batch(
    context: HttpContext, source: AnyPartition, records: Sequence[ProducerRecord]
) -> list[RecordMetadata | HttpError]:
    try:
        return list(await _append(context, source, records))
    except EXPECTED_ERRORS as error:
        if len(records) == 1 or not isinstance(error, Refused) or error.code not in SINGLE_RECORD_CODES:
            return [to_http_error(error)] * len(records)
    return [outcome for record in records for outcome in await _append_batch(context, source, [record])]


async def _append(
    context: HttpContext, source: AnyPartition, records: Sequence[ProducerRecord]
) -> list[RecordMetadata]:
    codec, level = topic_codec(source.config)
    batch = bytearray(encode_batch([record[1:5] for record in records], codec=codec, level=level))
    try:
        appended = await source.append(batch, timeout_ms=context.limits.append_ms)
    except Refused as refused:
        raise _rephrase_refusal(refused) from None
    context.records_written.inc(len(records))
    first, stamped, partition = appended.base_offset, appended.append_time_ms, source.partition
    if stamped >= 0:
        return [RecordMetadata(partition, first + n, stamped) for n in range(len(records))]
    return [RecordMetadata(partition, first + n, record.timestamp) for n, record in enumerate(records)]


def _rephrase_refusal(refused: Refused) -> Refused:
    """A refusal in the words of who sent records: the batch is ours."""
    found = _BATCH.match(refused.why)
    if found is None:
        return refused
    why = refused.why[found.end() :]
    if refused.code is Code.MESSAGE_TOO_LARGE:
        why = f"the record is too large: it makes a batch of {why}"
    return Refused(refused.code, why)


def topic_codec(config: TopicConfig) -> tuple[Codec, int | None]:
    """How to compress what came uncompressed, and at which level: as the topic says, "producer" leaves it alone."""
    codec = CODECS.get(config.compression_type, Codec.NONE)
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: 0 if config.compression_lz4_level == LZ4_FAST else config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return codec, levels.get(codec)
