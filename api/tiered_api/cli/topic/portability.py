"""`tiered topic check-settings`: finds settings of topics that do not survive a move between Kafka and tiered.

MirrorMaker copies what a topic or the cluster has set, without defaults and without what it leaves out itself.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping

from tiered.config.portability import REFUSED, SettingNote, check_for_here, check_for_kafka
from tiered.errors import Refused
from tiered_api.cli.configs import TOPIC, describe_configs
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.cli.topic.describe import print_errors
from tiered_api.cli.topic.topics import match_topics, select_topics
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.describe_configs import DescribeConfigsResourceResult

CHECKS: Mapping[str, Callable[[Mapping[str, str]], Iterable[SettingNote]]] = {
    "tiered": check_for_here,
    "kafka": check_for_kafka,
}
"""By target: the notes on the settings of a topic."""
STATIC_BROKER_CONFIG, DEFAULT_CONFIG = 4, 5
NOT_COPIED = {
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "message.timestamp.type",
}
"""Settings that MirrorMaker leaves out by default."""
AT_ONCE = 200
"""Topics of one request."""


async def check_settings(args: Namespace) -> int:
    """Prints the settings that the target refuses or does not carry out. FAILED if it refuses one."""
    rows: list[Row] = []
    missing: list[Refused] = []
    async with open_client(args) as client:
        topics = await select_topics(client, args) if args.topics else await _all_topics(client)
        for first in range(0, len(topics), AT_ONCE):
            for each in await describe_configs(client, TOPIC, topics[first : first + AT_ONCE]):
                if each.error_code:
                    missing.append(to_refused(each.error_code, each.resource_name, each.error_message))
                    continue
                notes = CHECKS[args.to](copied_settings(each.configs))
                rows += [_row(each.resource_name, note) for note in notes]
    print_rows(rows, args.format)
    print_errors(missing)
    return Exit.FAILED if missing or any(row["effect"] == REFUSED for row in rows) else Exit.OK


async def _all_topics(client: KafkaClient) -> list[str]:
    return await match_topics(client, [".*"])


def copied_settings(configs: Iterable[DescribeConfigsResourceResult]) -> dict[str, str]:
    """Returns the settings of a topic that MirrorMaker copies."""
    return {
        each.name: each.value
        for each in configs
        if each.config_source not in (STATIC_BROKER_CONFIG, DEFAULT_CONFIG)
        and each.value is not None
        and each.name not in NOT_COPIED
    }


def _row(topic: str, note: SettingNote) -> Row:
    return {
        "topic": topic,
        "setting": note.name,
        "value": note.value,
        "effect": note.effect,
        "why": note.why,
    }
