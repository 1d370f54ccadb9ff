"""`tiered topic describe|trim`: describes topics, and moves the start of their records."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Any

from tiered.config.settings import topic_rows
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.cli.cluster.health import explain_partitions
from tiered_api.cli.cluster.view import fetch_cluster_view
from tiered_api.cli.configs import TOPIC, config_rows, describe_configs
from tiered_api.cli.deletion_rights import find_kept_topics
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_error, print_json, print_lines, print_rows
from tiered_api.cli.reach import open_client, parse_numbers
from tiered_api.cli.status import format_status
from tiered_api.cli.text.offset_range import PointKind, parse_point, resolve_offsets
from tiered_api.cli.topic.compaction import compaction_facts, compaction_rows
from tiered_api.cli.topic.topics import select_topics
from tiered_api.health.verdict import topics_to_examine
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.client.leader_routing import (
    EARLIEST,
    LATEST,
    PartitionOutcomes,
    cap_last_stable,
    list_offsets,
    list_offsets_at,
    send_to_leaders,
)
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from tiered_api.kafka.protocol.schema import Message

OWN_SETTING = "flush"
"""A setting of topics that Kafka does not have."""
TO_HIGH_WATERMARK = -1
"""The offset of DeleteRecords that means: everything."""
CLEANUP_POLICY = "cleanup.policy"
PLAN_COLUMNS = ("topic", "partition", "start_offset", "new_start_offset", "records", "error")


async def describe(args: Namespace) -> int:
    """Prints summary, settings and partitions of topics."""
    described = await _describe(args)
    printed = False
    for name, topic in described.items():
        if args.format == "json":
            print_json({"name": name, "error": str(topic)} if isinstance(topic, Refused) else topic)
        elif not isinstance(topic, Refused):
            if printed:
                print_lines([""])
            _print_sections(topic)
            printed = True
    return report_refusals(described.values())


async def trim(args: Namespace) -> int:
    """Moves the start of partitions forward, or shows what would move."""
    rows = await _trim(args)
    print_rows(rows, args.format)
    return Exit.OK if all(row["error"] is None for row in rows) else Exit.FAILED


def report_refusals(outcomes: Iterable[object]) -> Exit:
    """Prints each refusal. Returns FAILED if there is one."""
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    print_errors(refusals)
    return Exit.FAILED if refusals else Exit.OK


def print_errors(refusals: Iterable[Refused]) -> None:
    """Prints one line for each refusal on the error stream."""
    for no in refusals:
        print_error(no.why)


def partitions_of(topic: MetadataResponseTopic) -> list[TopicPartition]:
    """Returns all partitions of a topic, in order."""
    return sorted(TopicPartition(topic.name or "", each.partition_index) for each in topic.partitions)


async def topics_by_name(client: KafkaClient, names: Iterable[str]) -> dict[str, MetadataResponseTopic | Refused]:
    """Returns each topic by the cluster's metadata, or the refusal."""
    got = {topic.name: topic for topic in (await client.fetch_metadata(list(names))).topics}
    out: dict[str, MetadataResponseTopic | Refused] = {}
    for name in names:
        topic = got.get(name)
        number = topic.error_code if topic else Code.UNKNOWN_TOPIC_OR_PARTITION.number
        out[name] = to_refused(number, name) if number or topic is None else topic
    return out


# -- describe ---------------------------------------------------------------------------------------------------------


async def _describe(args: Namespace) -> dict[str, dict[str, Any] | Refused]:
    with_partitions = args.partitions or args.all
    only = (args.summary or args.configs or args.partitions) and not args.all
    out: dict[str, dict[str, Any] | Refused] = {}
    async with open_client(args) as client:
        found = await topics_by_name(client, await select_topics(client, args))
        there = [name for name, topic in found.items() if not isinstance(topic, Refused)]
        configs = await topic_configs(client, there) if there and (not only or args.configs) else {}
        compaction = await _compaction(client, configs) if not only else {}
        unhealthy = await _unhealthy_rows(client, there) if with_partitions or not only else {}
        for name, topic in found.items():
            if isinstance(topic, Refused):
                out[name] = topic
                continue
            shown: dict[str, Any] = {}
            if not only or args.summary:
                shown["summary"] = _summary(topic)
            if not only or args.configs:
                shown["configs"] = configs[name]
                if idle := settings_without_effect(configs[name]):
                    shown["without_effect"] = idle
            if name in compaction:
                shown["compaction"] = compaction[name]
            if name in unhealthy:
                shown["unhealthy"] = unhealthy[name]
            if with_partitions:
                shown["partitions"] = await partition_rows(client, topic)
            out[name] = shown
    return out


async def topic_configs(client: KafkaClient, names: list[str]) -> dict[str, list[Row]]:
    """Returns the settings of topics with their sources."""
    got = await describe_configs(client, TOPIC, names)
    for each in got:
        if each.error_code:
            raise to_refused(each.error_code, f"settings of {each.resource_name}", each.error_message)
    return {each.resource_name: config_rows(each.configs) for each in got}


def settings_without_effect(rows: Iterable[Row]) -> list[Row]:
    """Returns the settings of a topic that our brokers keep and do not carry out, with the reasons. Empty for brokers
    that are not ours: their topics have no setting of our own."""
    texts = {row["key"]: row["value"] for row in rows}
    if OWN_SETTING not in texts:
        return []
    known = topic_rows()
    return [
        {"key": name, "value": text, "why": known[name].without_effect[text]}
        for name, text in texts.items()
        if name in known and text in known[name].without_effect
    ]


async def _compaction(client: KafkaClient, configs: Mapping[str, list[Row]]) -> dict[str, list[Row]]:
    """Returns rows on the compaction of the topics that are compacted. Empty for brokers that are not ours."""
    compacted = [
        name
        for name, rows in configs.items()
        if any(row["key"] == "cleanup.policy" and "compact" in str(row["value"]) for row in rows)
    ]
    try:
        facts = await compaction_facts(client, compacted) if compacted else []
    except Refused as refused:
        if refused.code is not Code.UNSUPPORTED_VERSION:
            raise
        return {}
    return {name: compaction_rows(each for each in facts if each.topic == name) for name in compacted}


async def _unhealthy_rows(client: KafkaClient, names: list[str]) -> dict[str, list[Row]]:
    """Returns rows for the partitions of topics that lack a leader or replicas, each with the reason."""
    if not names:
        return {}
    seen = await fetch_cluster_view(client, names)
    unhealthy: dict[str, list[Row]] = {}
    if lacking := topics_to_examine(seen):
        for each in await explain_partitions(client, seen, lacking):
            row: Row = {"partition": each.partition, "problems": ", ".join(each.problems), "why": each.why}
            unhealthy.setdefault(each.topic, []).append(row)
    return unhealthy


def _summary(topic: MetadataResponseTopic) -> Row:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replicas": max((len(each.replica_nodes) for each in topic.partitions), default=0),
    }


async def partition_rows(client: KafkaClient, topic: MetadataResponseTopic) -> list[Row]:
    """Returns a row for each partition. A partition without a leader has no offsets, because the request would wait for
    a leader."""
    wanted = [
        TopicPartition(topic.name or "", each.partition_index) for each in topic.partitions if each.leader_id >= 0
    ]
    starts = await list_offsets(client, dict.fromkeys(wanted, EARLIEST))
    ends = await list_offsets(client, dict.fromkeys(wanted, LATEST))
    stable = await list_offsets(client, dict.fromkeys(wanted, LATEST), read_committed=True)
    rows: list[Row] = []
    for each in sorted(topic.partitions, key=lambda each: each.partition_index):
        tp = TopicPartition(topic.name or "", each.partition_index)
        rows.append(partition_row(each, offset_of(starts, tp), offset_of(ends, tp), offset_of(stable, tp)))
    return rows


def partition_row(each: MetadataResponsePartition, start: int | None, end: int | None, stable: int | None) -> Row:
    """Returns the row of a partition, by offsets that were looked up one after the other."""
    return {
        "partition": each.partition_index,
        "leader": each.leader_id,
        "epoch": each.leader_epoch,
        "replicas": each.replica_nodes,
        "isr": each.isr_nodes,
        "log_start_offset": start,
        "high_watermark": end,
        "last_stable_offset": cap_last_stable(stable, end),
    }


def offset_of(found: PartitionOutcomes[tuple[int, int]], tp: TopicPartition) -> int | None:
    """Returns an offset; None if the partition has none."""
    value = found.get(tp)
    return None if value is None or isinstance(value, Refused) or value[0] < 0 else value[0]


def _print_sections(topic: Mapping[str, Any]) -> None:
    """Prints each part under its heading; a single part needs none."""
    for number, (heading, content) in enumerate(topic.items()):
        if len(topic) > 1:
            print_lines([*([""] if number else []), heading.upper().replace("_", " "), "=" * len(heading)])
        if heading == "summary":
            width = max(len(name) for name in content) + 2
            print_lines(f"{name.upper().replace('_', '-'):<{width}}{value}" for name, value in content.items())
        else:
            print_rows(content, "text")


# -- trim -------------------------------------------------------------------------------------------------------------


async def _trim(args: Namespace) -> list[Row]:
    async with open_client(args) as client:
        topic = await client.fetch_topic(args.topic)
        wanted = partitions_of(topic)
        if args.partitions != "all":
            chosen = {TopicPartition(args.topic, number) for number in parse_numbers(args.partitions, "-p")}
            if unknown := chosen - set(wanted):
                raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {', '.join(map(str, sorted(unknown)))}")
            wanted = sorted(chosen)
        where = parse_point(args.offset, time.time_ns() // 1_000_000)
        rows: list[Row] = []
        if where.at is PointKind.TIME:
            offsets, rows = await _find_times(client, where.value, wanted)
        elif where.at is PointKind.END and not where.value and not args.dry_run:
            offsets = dict.fromkeys(wanted, TO_HIGH_WATERMARK)
        else:
            offsets = await resolve_offsets(client, where, wanted)
        if args.dry_run:
            planned = await _plan_trim(client, offsets)
            return _sorted_rows([*map(_plan_row, rows), *planned])
        got = await _delete_records(client, offsets)
        refused = {tp: outcome for tp, outcome in got.items() if isinstance(outcome, Refused)}
        beyond = [tp for tp, refusal in refused.items() if refusal.code is Code.OFFSET_OUT_OF_RANGE]
        ends = await list_offsets(client, dict.fromkeys(beyond, LATEST)) if beyond else {}
    for each, outcome in got.items():
        start = None if isinstance(outcome, Refused) else outcome
        error = None
        if no := refused.get(each):
            error = format_status(no.code.number, _explain_trim(no, offsets[each], ends.get(each)))
        rows.append(_trim_row(each, start, error))
    return _sorted_rows(rows)


async def _find_times(
    client: KafkaClient, timestamp: int, wanted: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, int], list[Row]]:
    """Returns the offset of each partition at a time, and a row with an error for each one whose records are all
    earlier. A trim of those would delete everything, which has to be said with `end`."""
    offsets = await list_offsets_at(client, wanted, timestamp)
    unmatched = [each for each, offset in offsets.items() if offset < 0]
    starts = await list_offsets_at(client, unmatched, EARLIEST)
    ends = await list_offsets_at(client, unmatched, LATEST)
    rows: list[Row] = []
    for each in unmatched:
        offsets[each] = ends[each]
        if starts[each] < ends[each]:
            held = f"it has offsets {starts[each]} to {ends[each] - 1}"
            error = f"no record is at or after {timestamp} ms ({held}): -o end deletes them all"
            rows.append(_trim_row(each, None, error))
            del offsets[each]
    return offsets, rows


async def _plan_trim(client: KafkaClient, offsets: Mapping[TopicPartition, int]) -> list[Row]:
    """Returns the rows of a trim that deletes nothing, with the reasons why it would not delete either."""
    refused = {name: await _find_trim_refusal(client, name) for name in {each.topic for each in offsets}}
    starts = await list_offsets_at(client, offsets, EARLIEST)
    ends = await list_offsets_at(client, offsets, LATEST)
    rows: list[Row] = []
    for each, offset in offsets.items():
        beyond = f"offset {offset} is above the high watermark {ends[each]}" if offset > ends[each] else None
        error = refused[each.topic] or beyond
        start = None if error else max(offset, starts[each])
        records = None if start is None else start - starts[each]
        rows.append(_plan_row(_trim_row(each, start, error), starts[each], records))
    return rows


async def _find_trim_refusal(client: KafkaClient, name: str) -> str | None:
    """Returns why the broker deletes no records of a topic at all; None if it does, or if its settings are not told."""
    if await find_kept_topics(client, [name]):
        return format_status(Code.TOPIC_AUTHORIZATION_FAILED.number, None)
    for result in await describe_configs(client, TOPIC, [name], [CLEANUP_POLICY]):
        for each in result.configs:
            if each.name == CLEANUP_POLICY and "delete" not in (each.value or "delete").split(","):
                no = Refused(Code.POLICY_VIOLATION, name)
                return format_status(no.code.number, _explain_trim(no, 0, None))
    return None


def _explain_trim(no: Refused, offset: int, end: tuple[int, int] | Refused | None) -> str | None:
    """Returns why records are not deleted, if more is known than the code: its reply has no field for a message."""
    if no.code is Code.POLICY_VIOLATION:
        return "only compaction deletes records of this topic; add delete to its cleanup.policy first"
    if end is not None and not isinstance(end, Refused):
        return f"offset {offset} is above the high watermark {end[0]}"
    return None


def _trim_row(tp: TopicPartition, start: int | None, error: str | None) -> Row:
    return {"topic": tp.topic, "partition": tp.partition, "new_start_offset": start, "error": error}


def _plan_row(row: Row, start: int | None = None, records: int | None = None) -> Row:
    """Returns the row of a dry run: the present start, and how many records lie before the new one."""
    return {**dict.fromkeys(PLAN_COLUMNS), **row, "start_offset": start, "records": records}


def _sorted_rows(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(str(row["partition"])))


async def _delete_records(client: KafkaClient, offsets: Mapping[TopicPartition, int]) -> PartitionOutcomes[int]:
    def make(share: Mapping[TopicPartition, int]) -> Message:
        topics: dict[str, DeleteRecordsTopic] = {}
        for (name, partition), offset in share.items():
            topic = topics.setdefault(name, DeleteRecordsTopic(name=name))
            topic.partitions.append(DeleteRecordsPartition(partition_index=partition, offset=offset))
        return DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=client.timeout_ms)

    def read(got: DeleteRecordsResponse) -> Iterable[tuple[TopicPartition, int, int]]:
        for topic in got.topics:
            for each in topic.partitions:
                yield TopicPartition(topic.name, each.partition_index), each.error_code, each.low_watermark

    return await send_to_leaders(client, offsets, make, DeleteRecordsResponse, read)
