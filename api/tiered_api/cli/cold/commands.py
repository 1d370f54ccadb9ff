"""`tiered cold ls` and `cat`: the bucket read without any broker, by the code that brokers use."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import AsyncIterator

from tiered.errors import Code, Refused, TooLarge
from tiered.ids import PartitionId
from tiered.metadata.parts.topics import TopicImage
from tiered.offline.bucket import Bucket, open_bucket
from tiered.offline.committed import find_undecided_offset, read_committed_batches
from tiered.records.batch import decode_header
from tiered.records.model import CONTROL, Record
from tiered.records.pieces import iterate_records
from tiered_api.cli.exits import Exit
from tiered_api.cli.internal_rows import is_internal, print_folded
from tiered_api.cli.output import Row, print_json, text_or_base64
from tiered_api.cli.progress import Progress, draw_progress

REPORTED_RECORDS = 1_000
"""Records between two reports of the progress."""


def ls(args: Namespace) -> int:
    """Prints partitions with their cold offsets, or the segments of one topic."""
    rows = asyncio.run(_list_rows(args))
    print_folded(rows, args.format, _topic_if_internal, internal=args.internal or args.topic is not None)
    return Exit.OK


def cat(args: Namespace) -> int:
    """Prints records: partition, offset, timestamp, key and value with tabs between, or JSON."""
    # Records on the terminal show by themselves how far the command is.
    with draw_progress(f"read {args.topic}", is_wanted=not args.no_progress and not sys.stdout.isatty()) as shown:
        asyncio.run(_cat(args, shown))
    return Exit.OK


def _topic_if_internal(row: Row) -> str:
    return str(row["topic"]) if is_internal(str(row["topic"])) else ""


async def _list_rows(args: Namespace) -> list[Row]:
    async with open_bucket(args.store) as bucket:
        if args.topic is None:
            names = sorted((await bucket.read_image()).topics)
            return [
                row
                for name in names
                for row in await _partitions(bucket, await bucket.find_topic(name), args.partition)
            ]
        topic = await bucket.find_topic(args.topic)
        return [
            row
            for partition_id in _chosen_partitions(topic, args.partition)
            for row in await _segments(bucket, partition_id)
        ]


async def _partitions(bucket: Bucket, topic: TopicImage, only: int | None) -> list[Row]:
    made: list[Row] = []
    numbers = range(len(topic.partitions)) if only is None else [only] if only < len(topic.partitions) else []
    for number in numbers:
        manifest = await bucket.manifests.load(PartitionId(topic.topic_id, number))
        made.append(
            {
                "topic": topic.name,
                "partition": number,
                "segments": manifest.segment_count if manifest else 0,
                "bytes": manifest.cold_bytes if manifest else 0,
                "log_start_offset": manifest.log_start_offset if manifest else 0,
                "cold_end_offset": manifest.cold_end_offset if manifest else 0,
            }
        )
    return made


async def _segments(bucket: Bucket, partition_id: PartitionId) -> list[Row]:
    manifest = await bucket.manifests.load(partition_id)
    if manifest is None:
        return []
    return [
        {
            "partition": partition_id.partition,
            "base_offset": entry.base_offset,
            "next_offset": entry.next_offset,
            "records": entry.record_count,
            "bytes": entry.log_bytes,
            "leader_epoch": entry.leader_epoch,
            "max_timestamp": entry.max_timestamp,
            "key": entry.key,
        }
        async for entry in bucket.manifests.list_segments(manifest, manifest.log_start_offset)
    ]


async def _cat(args: Namespace, shown: Progress) -> None:
    async with open_bucket(args.store) as bucket:
        chosen = _chosen_partitions(await bucket.find_topic(args.topic), args.partition)
        counts = [await _count_offsets(bucket, partition_id, args) if shown.is_drawn else 0 for partition_id in chosen]
        done = 0
        for number, partition_id in enumerate(chosen):
            done = sum(counts[:number])
            left = args.max
            async for record in _records(bucket, args.topic, partition_id, args.offset, args.read_committed):
                if left is not None:
                    if left == 0:
                        break
                    left -= 1
                _print(partition_id.partition, record, args.format)
                done += 1
                if done % REPORTED_RECORDS == 1:
                    shown.report(done, sum(counts), "offsets")


async def _count_offsets(bucket: Bucket, partition_id: PartitionId, args: Namespace) -> int:
    """Returns how many offsets of a partition are read at most."""
    manifest = await bucket.manifests.load(partition_id)
    if manifest is None:
        return 0
    count = manifest.cold_end_offset - max(args.offset or 0, manifest.log_start_offset)
    return max(count if args.max is None else min(count, args.max), 0)


async def _records(
    bucket: Bucket, topic: str, partition_id: PartitionId, offset: int | None, read_committed: bool
) -> AsyncIterator[Record]:
    """Yields the cold records of a partition from an offset on, without transaction markers.

    Records of open and aborted transactions are left out, unless the user asks for them.
    """
    manifest = await bucket.manifests.load(partition_id)
    if manifest is None or manifest.cold_end_offset == manifest.log_start_offset:
        return
    start = manifest.log_start_offset if offset is None else offset
    if not manifest.log_start_offset <= start <= manifest.cold_end_offset:
        held = f"{manifest.log_start_offset} to {manifest.cold_end_offset}"
        raise Refused(
            Code.OFFSET_OUT_OF_RANGE,
            f"offset {start} of {topic}-{partition_id.partition} is not in the bucket, which holds {held}",
        )
    if read_committed:
        undecided = await find_undecided_offset(bucket, manifest)
        end = manifest.cold_end_offset if undecided is None else max(undecided, manifest.log_start_offset)
        if start >= end:
            return
        pieces = read_committed_batches(bucket, partition_id, start, end, manifest=manifest)
    else:
        pieces = bucket.reader.iterate(partition_id, start, manifest=manifest)
    async for piece in pieces:
        origin = piece.batches[0].position
        for batch in piece.batches:
            if not batch.attributes & CONTROL:
                at = batch.position - origin
                try:
                    for record in iterate_records(piece.data, at, decode_header(piece.data, at), start):
                        yield record
                except TooLarge as error:
                    why = f"{error.why}: go on with --offset {error.next_offset}"
                    where = f"{topic}-{partition_id.partition}"
                    raise TooLarge(why, where=where, offset=error.offset, next_offset=error.next_offset) from None


def _chosen_partitions(topic: TopicImage, only: int | None) -> list[PartitionId]:
    if only is not None and only >= len(topic.partitions):
        raise Refused(
            Code.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has partitions 0 to {len(topic.partitions) - 1}, not {only}"
        )
    numbers = range(len(topic.partitions)) if only is None else [only]
    return [PartitionId(topic.topic_id, number) for number in numbers]


def _print(partition: int, record: Record, form: str) -> None:
    key, value = text_or_base64(record.key), text_or_base64(record.value)
    if form == "json":
        headers = [{"name": name, "value": text_or_base64(data)} for name, data in record.headers]
        print_json(
            {
                "partition": partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": key,
                "value": value,
                "headers": headers,
            }
        )
    else:
        texts = ("-" if text is None else text for text in (key, value))
        print(partition, record.offset, record.timestamp, *texts, sep="\t")
