"""`tiered topic create|list|alter|add-partitions`: topics as rows, one outcome for each."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence

from tiered.errors import Code, Refused
from tiered_api.cli.configs import APPEND, DELETE, SET, SUBTRACT, TOPIC, alter_configs
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_error, print_rows
from tiered_api.cli.reach import open_client, parse_pairs
from tiered_api.cli.status import OK, format_status, print_outcomes
from tiered_api.kafka.client.client import KafkaClient, code_from_number
from tiered_api.kafka.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tiered_api.kafka.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tiered_api.kafka.protocol.messages.incremental_alter_configs import AlterableConfig
from tiered_api.kafka.protocol.messages.metadata import MetadataResponseTopic


async def create(args: Namespace) -> int:
    """Creates topics."""
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in parse_pairs(args.config, "-c")]
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=args.partitions,
            replication_factor=args.replicas,
            configs=configs,
        )
        for name in dict.fromkeys(args.topics)
    ]
    async with open_client(args) as client:
        request = CreateTopicsRequest(topics=topics, timeout_ms=client.timeout_ms, validate_only=args.dry_run)
        got = await client.send_to_controller(request, CreateTopicsResponse)
    rows: list[Row] = []
    for each in got.topics:
        word = format_status(each.error_code, each.error_message, dry_run=args.dry_run)
        if each.error_code == Code.TOPIC_ALREADY_EXISTS.number and args.if_not_exists:
            word = f"{OK} (exists)"
        rows.append({"topic": each.name, "status": word})
    return print_outcomes(rows, args.format)


async def alter(args: Namespace) -> int:
    """Changes settings of topics."""
    changes = [
        AlterableConfig(name=name, config_operation=SET, value=value) for name, value in parse_pairs(args.set, "-s")
    ]
    changes += [AlterableConfig(name=name, config_operation=DELETE, value=None) for name in args.delete]
    for given, operation, option in ((args.append, APPEND, "--append"), (args.subtract, SUBTRACT, "--subtract")):
        changes += [
            AlterableConfig(name=name, config_operation=operation, value=value)
            for name, value in parse_pairs(given, option)
        ]
    if not changes:
        raise Refused(Code.INVALID_REQUEST, "nothing to alter: give -s NAME=VALUE or -d NAME")
    async with open_client(args) as client:
        names = await select_topics(client, args)
        # Checked first: a broker reports a setting that no topic can have before it reports that a topic is missing.
        missing = {
            topic.name: topic.error_code for topic in (await client.fetch_metadata(names)).topics if topic.error_code
        }
        there = [name for name in names if name not in missing]
        got = await alter_configs(client, TOPIC, dict.fromkeys(there, changes), dry_run=args.dry_run) if there else []
    rows: list[Row] = [{"topic": name, "status": format_status(number, None)} for name, number in missing.items()]
    found = rows + [
        {
            "topic": each.resource_name,
            "status": format_status(each.error_code, each.error_message, dry_run=args.dry_run),
        }
        for each in got
    ]
    return print_outcomes(found, args.format)


async def add_partitions(args: Namespace) -> int:
    """Adds partitions to topics."""
    async with open_client(args) as client:
        known: dict[str, MetadataResponseTopic] = {}
        rows: list[Row] = []
        for topic in (await client.fetch_metadata(args.topics)).topics:
            if topic.error_code:
                rows.append({"topic": topic.name, "status": format_status(topic.error_code, None)})
            else:
                known[topic.name or ""] = topic
        topics = [
            CreatePartitionsTopic(name=name, count=len(topic.partitions) + args.num, assignments=None)
            for name, topic in known.items()
        ]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=client.timeout_ms, validate_only=args.dry_run)
        got = (
            await client.send_to_controller(request, CreatePartitionsResponse) if topics else CreatePartitionsResponse()
        )
    found = [
        *rows,
        *(
            {"topic": each.name, "status": format_status(each.error_code, each.error_message, dry_run=args.dry_run)}
            for each in got.results
        ),
    ]
    return print_outcomes(found, args.format)


async def list_topics(args: Namespace) -> int:
    """Lists topics, or with `--detailed` their partitions."""
    async with open_client(args) as client:
        got = await client.fetch_metadata(None)
    wanted = [compile_pattern(name) for name in args.topics] if args.regex else None
    found = []
    for topic in sorted(got.topics, key=lambda topic: topic.name or ""):
        name = topic.name or ""
        if wanted is not None:
            is_wanted = any(form.fullmatch(name) for form in wanted)
        else:
            is_wanted = name in args.topics if args.topics else not topic.is_internal
        if (is_wanted or (topic.is_internal and args.internal)) and code_from_number(topic.error_code) is Code.NONE:
            found.append(topic)
    missing = set() if args.regex else set(args.topics) - {topic.name for topic in found}
    rows = [row for topic in found for row in (_partitions(topic) if args.detailed else [_summary(topic)])]
    print_rows(rows, args.format)
    for name in sorted(missing):
        print_error(f"no topic {name}")
    return Exit.FAILED if missing else Exit.OK


async def match_topics(client: KafkaClient, patterns: Sequence[str]) -> list[str]:
    """Returns the names of topics that one of the regular expressions matches as a whole; internal topics only by their
    exact names."""
    forms = [compile_pattern(pattern) for pattern in patterns]
    got = await client.fetch_metadata(None)
    names = sorted(topic.name or "" for topic in got.topics if not topic.is_internal or topic.name in patterns)
    return [name for name in names if any(form.fullmatch(name) for form in forms)]


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a regular expression of the command line; `*` alone matches everything."""
    try:
        return re.compile(".*" if pattern == "*" else pattern)
    except re.error as error:
        raise Refused(Code.INVALID_REQUEST, f"{pattern!r} is not a regular expression: {error}") from None


async def select_topics(client: KafkaClient, args: Namespace) -> list[str]:
    """Returns the topics that a command is for. Raises `Refused` if a regular expression matches none."""
    if not args.regex:
        return list(dict.fromkeys(args.topics))
    found = await match_topics(client, args.topics)
    if not found:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no topic matches {' '.join(args.topics)}")
    return found


def _summary(topic: MetadataResponseTopic) -> Row:
    replicas = max((len(each.replica_nodes) for each in topic.partitions), default=0)
    return {"name": topic.name, "partitions": len(topic.partitions), "replicas": replicas}


def _partitions(topic: MetadataResponseTopic) -> list[Row]:
    return [
        {
            "topic": topic.name,
            "partition": each.partition_index,
            "leader": each.leader_id,
            "epoch": each.leader_epoch,
            "replicas": each.replica_nodes,
            "isr": each.isr_nodes,
        }
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
    ]
