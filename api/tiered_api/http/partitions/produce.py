"""Produce with acks=all: the partition of each record, the batches, and the outcome of each record."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused, check_invariant
from tiered.hot.validation import LogAppendInfo, RecordsUnopened
from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.topic_names import INTERNAL, check_writable
from tiered.quotas.timed_steps import spend
from tiered.records.batch import HEADER_BYTES, Codec, encode_batch
from tiered.records.compression import affordable_level, level_cost
from tiered.records.partitioner import partition_of
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered.system.turns import each_of
from tiered.thread_pool import end_if_abandoned
from tiered_api.http.exchange.context import INLINE_BYTES, HttpContext
from tiered_api.http.exchange.errors import (
    EXPECTED_ERRORS,
    KEY_REUSED,
    PARTITION_NOT_FOUND,
    TOPIC_NOT_FOUND,
    HttpError,
    to_http_error,
)
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.partitions.idempotency import IdempotencyKey, IdempotencyKeys, find_use, reused_error
from tiered_api.http.partitions.record_formats import ProducerRecord
from tiered_api.http.partitions.remote_partition import (
    AnyPartition,
    RemotePartition,
    open_partition,
)

RECORD_OVERHEAD = 32
"""Most bytes that a record takes beside its key, value and headers (five varints, attributes)."""

RECORDS_PER_TURN = 5_000
"""Records of one request that are handled before other requests get their turn."""


NO_PRODUCER = (-1, -1, -1)
"""Id, epoch and first sequence of a batch without a producer."""

LZ4_FAST = 9
"""Kafka's value for no compression level."""
CODECS = {"gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}

keyless_counter = itertools.count()
"""Keyless records of one request go to one partition; those of the next request to the next one."""

_BATCH = re.compile(r"batch at byte \d+: ")
"""The start of the log's refusals."""
SINGLE_RECORD_CODES = (Code.INVALID_TIMESTAMP, Code.INVALID_RECORD, Code.MESSAGE_TOO_LARGE)
"""Refusals of a batch that one record may have caused: the other records are tried again without it."""


class RecordMetadata(NamedTuple):
    """The place of a record in the log, and its timestamp there."""

    partition: int
    offset: int
    timestamp: int


def find_topic(context: HttpContext, name: str) -> TopicImage:
    """Returns the topic. Raises `HttpError` 404 if there is none."""
    topic = context.broker.image.topics.get(name)
    if topic is None:
        raise HttpError(TOPIC_NOT_FOUND, f"topic {name[:249]!r} not found")
    return topic


def find_partition(
    context: HttpContext, topic: TopicImage, partition: int, request: HttpRequest | None = None
) -> AnyPartition:
    """Returns the partition, led here or elsewhere: a leader elsewhere judges the caller of the request. Raises
    `HttpError` 404 if the topic has no such partition."""
    if not 0 <= partition < len(topic.partitions):
        raise HttpError(PARTITION_NOT_FOUND, f"topic {topic.name!r} has no partition {partition}")
    tp, caller = TopicPartition(topic.name, partition), request.caller if request is not None else None
    return open_partition(context, tp, topic.topic_id, caller=caller, recheck=_recheck_of(request))


def _recheck_of(request: HttpRequest | None) -> Callable[[], None]:
    return request.recheck if request is not None else lambda: None


def choose_partition(record: ProducerRecord, partitions: int, counter: int) -> int:
    """Returns the partition of a record: the one that it names, else by its key as Kafka's default partitioner, else in
    turn."""
    if record.partition is not None:
        return record.partition
    if record.key is not None:
        return partition_of(record.key, partitions)
    return counter % partitions


async def append_one(request: HttpRequest, topic: TopicImage, record: ProducerRecord) -> RecordMetadata:
    """Appends one record as one batch. Raises the error that refuses the record."""
    check_writable(topic.name)
    context, partition = request.context, choose_partition(record, len(topic.partitions), next(keyless_counter))
    source = find_partition(context, topic, partition, request)
    compression = choose_compression(source.config, [record])
    return (await _append(context, _PartitionRecords.of(request, source, [0]), [record], compression, None))[0]


async def append_once(
    request: HttpRequest, topic: TopicImage, records: Sequence[ProducerRecord], key: IdempotencyKey | None
) -> list[RecordMetadata | HttpError]:
    """Appends the records of a request as `append_many` does, once for its idempotency key if it has one."""
    if key is None:
        return await append_many(request.context, topic, records, request=request)
    with request.context.service(IdempotencyKeys).use(key):
        return await append_many(request.context, topic, records, key, request)


def _next_counter(key: IdempotencyKey | None) -> int:
    """Returns the number that chooses the partition of keyless records: the same one for each try of a request."""
    return next(keyless_counter) if key is None else key.producer_id


def append_locally(
    context: HttpContext,
    topic: TopicImage,
    record: ProducerRecord,
    key: IdempotencyKey | None = None,
    holder: str = "",
) -> RecordMetadata | None:
    """Appends one record to a partition that commits it at once. Returns None and does nothing for any other partition,
    and for a record that takes long to compress. Raises the error that refuses the record. A key counts for
    `holder`."""
    partition = choose_partition(record, len(topic.partitions), _next_counter(key))
    if not 0 <= partition < len(topic.partitions) or topic.name in INTERNAL:
        return None
    replica = context.broker.leader_replica(topic.name, partition)
    if replica.topic_id != topic.topic_id or not replica.commits_on_append:
        return None
    compression = choose_compression(replica.config, [record])
    if compression.work > INLINE_BYTES:
        return None
    if key is not None:
        context.service(IdempotencyKeys).check(key)
    try:
        data = encode_records(compression, [record], NO_PRODUCER if key is None else key[1:])
        appended = replica.append_now(data, ACKS_ALL, holder=holder)
    except RecordsUnopened:
        return None
    except Refused as refused:
        raise _rephrase_refusal(refused) from None
    check_invariant(replica.is_committed(appended.last_offset + 1), "an append waits in an ISR of one", replica.tp)
    return _note_append(context, partition, [record], key, appended)[0]


async def append_many(
    context: HttpContext,
    topic: TopicImage,
    records: Sequence[ProducerRecord],
    key: IdempotencyKey | None = None,
    request: HttpRequest | None = None,
) -> list[RecordMetadata | HttpError]:
    """Appends one batch for each partition, or more if one would be too large. Returns the outcome of each record, in
    order. A batch may wait, so login and rights of the request are checked again before each. With an idempotency key
    there is one batch for each partition, and `HttpError` is raised if one would be too large, or if the key was used
    for another request and nothing was written."""
    check_writable(topic.name)
    counter = _next_counter(key)
    if len(records) <= RECORDS_PER_TURN:
        return await _append_chunk(context, topic, records, counter, key, request)
    if key is not None:
        raise HttpError(413, f"a request with an Idempotency-Key has at most {RECORDS_PER_TURN} records")
    outcomes: list[RecordMetadata | HttpError] = []
    for start in range(0, len(records), RECORDS_PER_TURN):
        some = records[start : start + RECORDS_PER_TURN]
        outcomes += await _append_chunk(context, topic, some, counter, None, request)
        await asyncio.sleep(0)  # a sole replica commits without a wait
    return outcomes


async def _append_chunk(
    context: HttpContext,
    topic: TopicImage,
    records: Sequence[ProducerRecord],
    counter: int,
    key: IdempotencyKey | None,
    request: HttpRequest | None,
) -> list[RecordMetadata | HttpError]:
    outcomes: list[RecordMetadata | HttpError] = [_UNKNOWN] * len(records)
    count = len(topic.partitions)
    groups: dict[int, list[int]] = {}
    for n, record in enumerate(records):
        groups.setdefault(choose_partition(record, count, counter), []).append(n)
    shares = []
    for partition, numbers in groups.items():
        try:
            source = find_partition(context, topic, partition, request)
            share = _PartitionRecords.of(request, source, numbers)
        except EXPECTED_ERRORS as error:
            for n in numbers:
                outcomes[n] = to_http_error(error)
            continue
        shares.append(share)
    if key is not None:
        _check_single_batches(shares, records)
        await _append_keyed(context, shares, records, outcomes, key)
        return outcomes
    remote = []
    for share in shares:
        if isinstance(share.source, RemotePartition):
            remote.append(share)
        else:
            await _append_partition(context, share, records, outcomes, None)
    if remote:  # each waits for another broker
        await asyncio.gather(
            *(
                spend(_append_partition(context, share, records, outcomes, None), context.clock.mono_ns)
                for share in remote
            )
        )
    return outcomes


async def _append_keyed(
    context: HttpContext,
    shares: Sequence[_PartitionRecords],
    records: Sequence[ProducerRecord],
    outcomes: list[RecordMetadata | HttpError],
    key: IdempotencyKey,
) -> None:
    """Appends the batches of a request with a key. Raises `HttpError` 422 if another request has used the key and
    nothing was written: else the reply has the outcome of each record. Only the other brokers know the keys of their
    partitions, so these come first."""
    remote = [share for share in shares if isinstance(share.source, RemotePartition)]
    local = [(share, share.source) for share in shares if isinstance(share.source, LeaderReplica)]
    uses = {find_use(replica, key) for _, replica in local} - {None}
    if uses and key not in uses:
        raise reused_error()
    await asyncio.gather(
        *(spend(_append_partition(context, share, records, outcomes, key), context.clock.mono_ns) for share in remote)
    )
    reused = [_is_reused(share, outcomes) for share in remote]
    for share, replica in local:
        if any(reused) and find_use(replica, key) != key:
            for n in share.numbers:
                outcomes[n] = reused_error()
        else:
            await _append_partition(context, share, records, outcomes, key)
        reused.append(_is_reused(share, outcomes))
    if reused and all(reused):
        raise reused_error()


def _is_reused(share: _PartitionRecords, outcomes: Sequence[RecordMetadata | HttpError]) -> bool:
    """True if the batch of this partition was refused because another request has used its key."""
    outcome = outcomes[share.numbers[0]]
    return isinstance(outcome, HttpError) and outcome.error_code == KEY_REUSED


class _PartitionRecords(NamedTuple):
    """The records of one partition, by their numbers, and the size limit of its batches. Threads and idempotency keys
    count for the client of the request; the broker itself writes without one."""

    source: AnyPartition
    numbers: list[int]
    limit: int
    request: HttpRequest | None

    @classmethod
    def of(cls, request: HttpRequest | None, source: AnyPartition, numbers: list[int]) -> _PartitionRecords:
        """Returns the records of a request, or of the broker itself."""
        limit = min(source.config.max_message_bytes, source.config.segment_size)
        return cls(source, numbers, limit, request)

    @property
    def holder(self) -> str:
        """The holder of the caller; the broker itself has none."""
        return self.request.caller.holder if self.request is not None else ""

    def recheck(self) -> None:
        """Raises `HttpError` if the caller lost its rights."""
        if self.request is not None:
            self.request.recheck()


def _check_single_batches(shares: Sequence[_PartitionRecords], records: Sequence[ProducerRecord]) -> None:
    """Raises `HttpError` 413 if the records of a partition need several batches: a key is the producer of one batch."""
    for share in shares:
        if len(list(batches(records, share.numbers, share.limit))) > 1:
            why = f"the records of partition {share.source.partition} do not fit into one batch of {share.limit} bytes"
            raise HttpError(413, f"{why}: a request with an Idempotency-Key writes one batch for each partition")


async def _append_partition(
    context: HttpContext,
    share: _PartitionRecords,
    records: Sequence[ProducerRecord],
    outcomes: list[RecordMetadata | HttpError],
    key: IdempotencyKey | None,
) -> None:
    async for batch in each_of(batches(records, share.numbers, share.limit)):
        taken = [records[n] for n in batch]
        compression = choose_compression(share.source.config, taken)
        placed = await _append_batch(context, share, taken, compression, key)
        for n, outcome in zip(batch, placed, strict=True):
            outcomes[n] = outcome


_UNKNOWN = HttpError(500, "internal error")


def batches(records: Sequence[ProducerRecord], numbers: Iterable[int], limit: int) -> Iterable[list[int]]:
    """Yields runs of `numbers` whose records fit into a batch of `limit` bytes; a record that is too large comes
    alone."""
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
    """Returns an upper bound of a record's bytes in a batch."""
    size = RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += 10 + 4 * len(name) + len(value or b"")
    return size


async def _append_batch(
    context: HttpContext,
    share: _PartitionRecords,
    records: Sequence[ProducerRecord],
    compression: Compression,
    key: IdempotencyKey | None = None,
) -> list[RecordMetadata | HttpError]:
    try:
        share.recheck()
        return list(await _append(context, share, records, compression, key))
    except EXPECTED_ERRORS as error:
        may_split = key is None and len(records) > 1
        if not may_split or not isinstance(error, Refused) or error.code not in SINGLE_RECORD_CODES:
            return [to_http_error(error)] * len(records)
    outcomes: list[RecordMetadata | HttpError] = []
    for record in records:
        outcomes += await _append_batch(context, share, [record], choose_compression(share.source.config, [record]))
    return outcomes


async def _append(
    context: HttpContext,
    share: _PartitionRecords,
    records: Sequence[ProducerRecord],
    compression: Compression,
    key: IdempotencyKey | None,
) -> list[RecordMetadata]:
    source = share.source
    producer = NO_PRODUCER if key is None else key[1:]
    run_job = context.run_job if share.request is None else share.request.run_job
    data = await run_job(compression.work, encode_records, compression, records, producer)
    if compression.work > INLINE_BYTES:  # another broker may lead the partition now
        caller = share.request.caller if share.request is not None else None
        source = open_partition(context, source.tp, source.topic_id, caller=caller, recheck=share.recheck)
    try:
        appended = await source.append(data, timeout_ms=context.limits.append_ms, holder=share.holder)
    except Refused as refused:
        raise _rephrase_refusal(refused) from None
    return _note_append(context, source.partition, records, key, appended)


class Compression(NamedTuple):
    """The codec of a batch and its level. `work` is what `HttpContext.run_job` takes as the size of the job: 0 without
    compression."""

    codec: Codec
    level: int | None
    work: int


NO_COMPRESSION = Compression(Codec.NONE, None, 0)


def choose_compression(config: TopicConfig, records: Sequence[ProducerRecord]) -> Compression:
    """Returns the compression of a batch of these records, by the settings of the topic."""
    if config.compression_type not in CODECS:
        return NO_COMPRESSION
    codec, level = topic_codec(config)
    size = sum(map(max_record_size, records))
    level = affordable_level(codec, level, size)
    return Compression(codec, level, size * level_cost(codec, level))


def encode_records(
    compression: Compression,
    records: Sequence[ProducerRecord],
    producer: tuple[int, int, int] = NO_PRODUCER,
    *,
    transactional: bool = False,
) -> bytearray:
    """Returns a batch of a producer, given by its id, epoch and first sequence."""
    if producer is NO_PRODUCER and not transactional and not compression.codec:  # most small requests
        return bytearray(encode_batch([record[1:5] for record in records]))
    producer_id, epoch, sequence = producer
    return bytearray(
        encode_batch(
            [record[1:5] for record in records],
            codec=compression.codec,
            level=compression.level,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
            between=end_if_abandoned,
        )
    )


def _note_append(
    context: HttpContext,
    partition: int,
    records: Sequence[ProducerRecord],
    key: IdempotencyKey | None,
    appended: LogAppendInfo,
) -> list[RecordMetadata]:
    """Counts records that were appended, and notes that their key is used. Returns the place of each."""
    context.records_written.inc(len(records))
    if key is not None:
        context.service(IdempotencyKeys).mark_used(key)
    first, stamped = appended.base_offset, appended.append_time_ms
    if stamped >= 0:
        return [RecordMetadata(partition, first + n, stamped) for n in range(len(records))]
    return [RecordMetadata(partition, first + n, record.timestamp) for n, record in enumerate(records)]


def _rephrase_refusal(refused: Refused) -> Refused:
    """Rephrases a refusal for a client that sent records and no batch."""
    found = _BATCH.match(refused.why)
    if found is None:
        return refused
    why = refused.why[found.end() :]
    if refused.code is Code.MESSAGE_TOO_LARGE:
        why = f"the record is too large: it makes a batch of {why}"
    return Refused(refused.code, why)


def topic_codec(config: TopicConfig) -> tuple[Codec, int | None]:
    """Returns codec and level for records that come uncompressed, by the topic's settings; "producer" means
    uncompressed."""
    codec = CODECS.get(config.compression_type, Codec.NONE)
    if codec is Codec.GZIP:
        return codec, config.compression_gzip_level
    if codec is Codec.LZ4:
        return codec, 0 if config.compression_lz4_level == LZ4_FAST else config.compression_lz4_level
    return codec, config.compression_zstd_level if codec is Codec.ZSTD else None
