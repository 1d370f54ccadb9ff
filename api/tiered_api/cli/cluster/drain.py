"""`tiered cluster drain`: all acknowledged records go to the bucket, so that every broker and every disk may go.

It sets `flush=bucket` for all topics, and waits until the metadata log says of each partition that no acknowledged
record is on disks alone. A cluster can then stop, and start again on empty disks. `--end` takes the setting back.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import NamedTuple

from tiered.errors import Code, Refused, Unavailable
from tiered.metadata.topic_names import INTERNAL
from tiered_api.cli.cluster.health import fetch_partitions, topic_chunks
from tiered_api.cli.configs import ALL_BROKERS, BROKER, DELETE, SET, SOURCES, TOPIC, alter_configs, describe_configs
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_json, print_lines, print_rows
from tiered_api.cli.progress import Progress, show_progress
from tiered_api.cli.reach import open_client
from tiered_api.cli.status import DRY_RUN, OK
from tiered_api.kafka.client.client import KafkaClient, only_result, to_refused
from tiered_api.kafka.protocol.messages.describe_configs import DescribeConfigsResourceResult
from tiered_api.kafka.protocol.messages.incremental_alter_configs import AlterableConfig

POLL_SECONDS = 0.5
NAMED_MAX = 5
"""Most topics or partitions that one sentence names."""
FLUSH, CLUSTER_FLUSH, BUCKET = "flush", "log.flush", "bucket"
TIERED, COPY_DISABLED = "remote.storage.enable", "remote.log.copy.disable"
OWN = "DYNAMIC_TOPIC_CONFIG"
DYNAMIC = "DYNAMIC_DEFAULT_BROKER_CONFIG"


class TopicFlush(NamedTuple):
    """How the records of a topic are flushed. `is_own`: the topic sets it, and not the cluster."""

    name: str
    flush: str
    is_own: bool
    copies_to_bucket: bool


class FlushChange(NamedTuple):
    """A setting that a drain changes. `topic` is empty for the default of all topics; `before` is None if nothing had
    set it."""

    topic: str
    before: str | None
    now: str


class DrainPlan(NamedTuple):
    """The settings to change, in order, and the topics that stay on disks alone."""

    changes: tuple[FlushChange, ...]
    left_out: tuple[str, ...]


def plan_drain(topics: Iterable[TopicFlush], cluster_flush: str | None) -> DrainPlan:
    """Returns what a drain changes. `cluster_flush` is the value that the cluster sets for all topics, None if it sets
    none. A topic that does not copy to the bucket gets its present value as its own, before the default changes."""
    kept, changed, left_out = [], [], []
    for each in topics:
        if each.name not in INTERNAL and not each.copies_to_bucket:
            left_out.append(each.name)
            if not each.is_own:
                kept.append(FlushChange(each.name, None, each.flush))
        elif each.is_own and each.flush != BUCKET:
            changed.append(FlushChange(each.name, each.flush, BUCKET))
    default = [] if cluster_flush == BUCKET else [FlushChange("", cluster_flush, BUCKET)]
    return DrainPlan((*kept, *default, *changed), tuple(left_out))


async def drain(args: Namespace) -> int:
    """Drains the cluster into its bucket, or ends that."""
    async with open_client(args) as client:
        topics = await _fetch_flush(client)
        before = await _fetch_cluster_flush(client)
        if args.end:
            return await _end(client, args, topics, before)
        plan = plan_drain(topics, before)
        if plan.left_out and not args.leave_untiered:
            raise Refused(
                Code.INVALID_CONFIG,
                f"these topics are not copied to the bucket: {_name_some(plan.left_out)}; set {TIERED}=true for them, "
                "or leave them on the disks with --leave-untiered",
            )
        await _apply(client, plan.changes, dry_run=args.dry_run)
        rows = [_row(each, DRY_RUN if args.dry_run else OK) for each in plan.changes]
        drained = 0
        if not args.dry_run:
            wanted = [each.name for each in topics if each.name not in plan.left_out]
            with show_progress(args, "drain into the bucket") as shown:
                drained = await _wait_until_drained(client, wanted, args.wait, shown)
    if args.format == "json":
        print_json({"changes": rows, "partitions_in_bucket": drained, "left_on_disks": list(plan.left_out)})
    else:
        print_rows(rows, args.format)
        if not args.dry_run:
            print_lines([_describe(drained, plan.left_out)])
    return Exit.OK


def _describe(drained: int, left_out: tuple[str, ...]) -> str:
    rest = f", but of {_name_some(left_out)}" if left_out else ""
    return (
        f"{drained} partitions are in the bucket: what acks=all acknowledges survives the loss of all brokers and "
        f"disks{rest}. Records with acks=1 are there too once their broker has stopped by SIGTERM."
    )


async def _end(client: KafkaClient, args: Namespace, topics: list[TopicFlush], before: str | None) -> int:
    changes = [FlushChange("", before, "")] if before is not None else []
    await _apply(client, changes, dry_run=args.dry_run)
    rows = [_row(each, DRY_RUN if args.dry_run else OK) for each in changes]
    own = [each.name for each in topics if each.is_own and each.flush == BUCKET]
    if args.format == "json":
        print_json({"changes": rows, "topics_of_their_own": own})
        return Exit.OK
    print_rows(rows, args.format)
    if own:
        print_lines([f"these topics have {FLUSH}={BUCKET} as their own setting, and keep it: {_name_some(own)}"])
    return Exit.OK


def _row(change: FlushChange, status: str) -> Row:
    name = FLUSH if change.topic else CLUSTER_FLUSH
    return {
        "topic": change.topic or None, "setting": name, "before": change.before, "now": change.now or None,
        "status": status,
    }  # fmt: skip


def _name_some(names: Iterable[str]) -> str:
    every = list(names)
    rest = f" and {len(every) - NAMED_MAX} more" if len(every) > NAMED_MAX else ""
    return ", ".join(every[:NAMED_MAX]) + rest


# -- settings ---------------------------------------------------------------------------------------------------------


async def _fetch_flush(client: KafkaClient) -> list[TopicFlush]:
    names = sorted(each.name or "" for each in (await client.fetch_metadata(None)).topics)
    found = []
    for some in topic_chunks(names):
        for result in await describe_configs(client, TOPIC, some, [FLUSH, TIERED, COPY_DISABLED]):
            if result.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION.number:
                continue  # it was deleted meanwhile
            if result.error_code:
                raise to_refused(result.error_code, f"settings of topic {result.resource_name}", result.error_message)
            found.append(_topic_flush(result.resource_name, result.configs))
    return found


def _topic_flush(name: str, configs: Iterable[DescribeConfigsResourceResult]) -> TopicFlush:
    by_name = {each.name: each for each in configs}
    flush = by_name.get(FLUSH)
    if flush is None:
        raise Refused(Code.UNSUPPORTED_VERSION, f"the brokers have no setting {FLUSH}: they are not of this service")
    copies = by_name[TIERED].value == "true" and by_name[COPY_DISABLED].value != "true"
    return TopicFlush(name, flush.value or "", SOURCES.get(flush.config_source) == OWN, copies)


async def _fetch_cluster_flush(client: KafkaClient) -> str | None:
    """Returns the value that the cluster sets for all brokers; None if it sets none."""
    node = min(client.brokers)
    for result in await describe_configs(client, BROKER, [str(node)], [CLUSTER_FLUSH], node=node):
        if result.error_code:
            raise to_refused(result.error_code, f"settings of broker {node}", result.error_message)
        for each in result.configs:
            if SOURCES.get(each.config_source) == DYNAMIC:
                return each.value
    return None


async def _apply(client: KafkaClient, changes: Iterable[FlushChange], *, dry_run: bool) -> None:
    """Changes the settings in order. Raises `Refused` with the sentence of the controller for the first that it does
    not take."""
    for change in changes:
        kind, name = (TOPIC, FLUSH) if change.topic else (BROKER, CLUSTER_FLUSH)
        config = AlterableConfig(name, SET if change.now else DELETE, change.now or None)
        got = only_result(await alter_configs(client, kind, {change.topic or ALL_BROKERS: [config]}, dry_run=dry_run))
        if got.error_code:
            what = f"topic {change.topic}" if change.topic else "all brokers"
            raise to_refused(got.error_code, f"{name} of {what}", got.error_message)


# -- the wait ---------------------------------------------------------------------------------------------------------


async def _wait_until_drained(client: KafkaClient, topics: list[str], seconds: float, shown: Progress) -> int:
    """Waits until all partitions are in the bucket, and returns their number. Raises `Unavailable` with some of those
    that are not."""
    deadline = client.clock.mono_ns() + int(seconds * 1e9)
    left, known = topics, set[tuple[str | None, int]]()
    while True:
        waiting, behind = [], []
        async for topic in fetch_partitions(client, left):
            missing = [each.partition_index for each in topic.partitions if not each.is_in_bucket]
            waiting += [f"{topic.name}/{number}" for number in missing]
            known.update({(topic.name, each.partition_index) for each in topic.partitions})
            behind += [topic.name or ""] if missing else []
        left = sorted(set(behind))  # no topic is asked for again once all of it is there
        shown.report(len(known) - len(waiting), len(known), "partitions")
        if not waiting:
            return len(known)
        if client.clock.mono_ns() >= deadline:
            why = "the setting stays, and they go on; `tiered cluster health` names troubles, run it again to wait"
            raise Unavailable(
                f"{len(waiting)} of {len(known)} partitions are not in the bucket yet: {_name_some(waiting)}; {why}"
            )
        await client.clock.sleep(POLL_SECONDS)
