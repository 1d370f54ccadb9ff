"""`tiered cluster info|config`: the brokers in a few lines, and their settings."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from tiered.errors import Code, Refused
from tiered_api.cli.configs import (
    ALL_BROKERS,
    BROKER,
    DELETE,
    SET,
    alter_configs,
    config_rows,
    describe_configs,
)
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_json, print_lines, print_rows
from tiered_api.cli.reach import open_client, parse_pairs
from tiered_api.cli.status import format_status, print_outcomes
from tiered_api.kafka.client.client import KafkaClient, only_result, to_refused
from tiered_api.kafka.protocol.messages.incremental_alter_configs import AlterableConfig


async def info(args: Namespace) -> int:
    """Prints the cluster, its brokers and with `-t` its topics."""
    async with open_client(args) as client:
        got = await client.fetch_metadata(None if args.topics else [])
    brokers = [
        {
            "id": each.node_id,
            "host": each.host,
            "port": each.port,
            "rack": each.rack,
            "controller": each.node_id == got.controller_id,
        }
        for each in sorted(got.brokers, key=lambda each: each.node_id)
    ]
    topics = [
        {
            "name": each.name,
            "partitions": len(each.partitions),
            "replicas": max((len(one.replica_nodes) for one in each.partitions), default=0),
        }
        for each in sorted(got.topics, key=lambda each: each.name or "")
        if args.internal or not each.is_internal
    ]
    if args.format == "json":
        whole: dict[str, Any] = {"cluster_id": got.cluster_id, "controller": got.controller_id, "brokers": brokers}
        print_json({**whole, "topics": topics} if args.topics else whole)
        return Exit.OK
    print_lines(["CLUSTER", "=======", got.cluster_id or "-", "", "BROKERS", "======="])
    rows = [{name: value for name, value in row.items() if name != "controller"} for row in brokers]
    marked = [
        {**row, "id": f"{row['id']}*" if broker["controller"] else str(row["id"])}
        for row, broker in zip(rows, brokers, strict=True)
    ]
    print_rows(marked, "text")
    if args.topics:
        print_lines(["", "TOPICS", "======"])
        print_rows(topics, "text")
    return Exit.OK


async def config_list(args: Namespace) -> int:
    """Prints the settings of a broker."""
    rows = await _configs(args, None)
    print_rows([row for row in rows if args.filter in str(row["key"])], args.format)
    return Exit.OK


async def config_get(args: Namespace) -> int:
    """Prints the value of a setting, or a row for each of several."""
    names = list(dict.fromkeys(args.keys))
    known = {row["key"]: row for row in await _configs(args, names)}
    if missing := [name for name in names if name not in known]:
        raise Refused(Code.INVALID_CONFIG, f"no setting {', '.join(missing)}")
    found = [known[name] for name in names]
    if args.format == "json" or len(found) > 1:
        print_rows(found, args.format)
    else:
        print_lines(["" if found[0]["value"] is None else str(found[0]["value"])])
    return Exit.OK


async def config_set(args: Namespace) -> int:
    """Changes settings of all brokers, or of one."""
    if len(args.settings) == 2 and "=" not in args.settings[0]:
        changes: list[tuple[str, str | None]] = [(args.settings[0], args.settings[1])]
    else:
        changes = list(parse_pairs(args.settings, "config set"))
    return await _alter_and_print(args, changes)


async def config_reset(args: Namespace) -> int:
    """Resets settings to their defaults."""
    return await _alter_and_print(args, [(name, None) for name in args.keys])


async def _alter_and_print(args: Namespace, changes: list[tuple[str, str | None]]) -> int:
    rows = await _alter(args, changes)
    return print_outcomes(rows, args.format)


# -- settings ---------------------------------------------------------------------------------------------------------


async def _configs(args: Namespace, keys: list[str] | None) -> list[Row]:
    async with open_client(args) as client:
        node = await _node(client, args)
        result = only_result(await describe_configs(client, BROKER, [str(node)], keys, node=node))
    if result.error_code:
        raise to_refused(result.error_code, f"settings of broker {node}", result.error_message)
    return config_rows(result.configs)


async def _node(client: KafkaClient, args: Namespace) -> int:
    """Returns the broker for the request: the named one, else the first."""
    await client.fetch_metadata([])
    if args.node is None:
        return min(client.brokers)
    if args.node not in client.brokers:
        raise Refused(Code.INVALID_REQUEST, f"broker {args.node} is not live: live are {sorted(client.brokers)}")
    return int(args.node)


async def _alter(args: Namespace, changes: list[tuple[str, str | None]]) -> list[Row]:
    configs = [AlterableConfig(name, DELETE if value is None else SET, value) for name, value in changes]
    async with open_client(args) as client:
        name = ALL_BROKERS if args.node is None else str(await _node(client, args))
        got = only_result(await alter_configs(client, BROKER, {name: configs}, node=args.node, dry_run=args.dry_run))
    words = format_status(got.error_code, got.error_message, dry_run=args.dry_run)
    return [{"setting": name, "value": value, "status": words} for name, value in changes]
