"""`tiered topic compact`: has the logs of topics cleaned now."""

from __future__ import annotations

from argparse import Namespace

from tiered.errors import Refused
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import print_rows
from tiered_api.cli.reach import open_client
from tiered_api.cli.topic.compaction import compaction_facts, compaction_rows
from tiered_api.cli.topic.describe import print_errors, topics_by_name
from tiered_api.cli.topic.topics import select_topics
from tiered_api.kafka.client.client import to_refused


async def compact(args: Namespace) -> int:
    """Has topics cleaned now, and prints a row for each partition."""
    async with open_client(args) as client:
        found = await topics_by_name(client, await select_topics(client, args))
        refusals = [topic for topic in found.values() if isinstance(topic, Refused)]
        names = [name for name, topic in found.items() if not isinstance(topic, Refused)]
        facts = await compaction_facts(client, names, clean=not args.dry_run)
        refusals += [
            to_refused(each.error_code, f"{each.topic}-{each.partition}", each.error_message)
            for each in facts
            if each.error_code
        ]
        rows, refusals = compaction_rows(each for each in facts if not each.error_code), refusals
    print_rows(rows, args.format)
    print_errors(refusals)
    return Exit.FAILED if refusals else Exit.OK
