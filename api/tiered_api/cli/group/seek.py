"""`tiered group seek`: changes the committed offsets of groups without active members."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_error, print_rows
from tiered_api.cli.parsing import INT64_MAX, is_number
from tiered_api.cli.reach import open_client
from tiered_api.cli.status import format_status
from tiered_api.cli.text.offset_range import UNIX_MS, WORDS, Point, parse_point, resolve_offsets
from tiered_api.cli.topic.describe import partitions_of
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.group_offsets import commit_offsets, fetch_committed_offsets
from tiered_api.kafka.client.leader_routing import PartitionOutcomes


async def seek(args: Namespace) -> int:
    """Commits new offsets and prints the old ones beside them."""
    rows = await _seek(args)
    print_rows(rows, args.format)
    return Exit.OK if all("error" not in row or row["error"] is None for row in rows) else Exit.FAILED


async def _seek(args: Namespace) -> list[Row]:
    only = [topic for text in args.topics for topic in text.split(",") if topic]
    async with open_client(args) as client:
        prior = await fetch_committed_offsets(client, args.group)
        if args.to is not None:
            target = await _resolve_target(client, args, prior, only)
        else:
            found = (
                await fetch_committed_offsets(client, args.to_group)
                if args.to_group
                else read_offsets_file(args.to_file)
            )
            target = {tp: offset for tp, offset in found.items() if not only or tp.topic in only}
        if not target:
            raise Refused(Code.INVALID_REQUEST, f"nothing to seek: group {args.group} has no offset for it")
        got: PartitionOutcomes[int] = dict(target) if args.dry_run else await commit_offsets(client, args.group, target)
    rows: list[dict[str, object]] = []
    for tp, outcome in sorted(got.items(), key=lambda each: each[0]):
        row = {
            "topic": tp.topic,
            "partition": tp.partition,
            "prior_offset": prior.get(tp),
            "current_offset": target[tp],
        }
        rows.append({**row, "error": _explain_refusal(outcome, args.group) if isinstance(outcome, Refused) else None})
    if not any(row["error"] for row in rows):
        return [{name: value for name, value in row.items() if name != "error"} for row in rows]
    return list(rows)


async def _resolve_target(
    client: KafkaClient, args: Namespace, prior: dict[TopicPartition, int], only: list[str]
) -> dict[TopicPartition, int]:
    """Returns the offset for `--to` in every partition of the group's topics, or of the named topics."""
    known = {tp.topic for tp in prior}
    if (new := sorted(set(only) - known)) and not args.allow_new_topics:
        raise Refused(
            Code.INVALID_REQUEST,
            f"group {args.group} has no offset for {', '.join(new)}: allow it with --allow-new-topics",
        )
    wanted = []
    for topic in sorted(set(only) or known):
        wanted += partitions_of(await client.fetch_topic(topic))
    point = parse_target_point(args.to, time.time_ns() // 1_000_000)
    return await resolve_offsets(client, point, wanted, report=print_error)


def parse_target_point(text: str, now_ms: int) -> Point:
    """Parses `start`, `end`, or a time as in `consume -o`; a unix time may lack its @, as in rpk. Raises `Refused`
    (INVALID_REQUEST) for an offset, which means nothing for all partitions of a group."""
    if text in WORDS:
        return WORDS[text]
    if text.isdecimal() and len(text) in UNIX_MS:
        text = f"@{text}"
    if not text.startswith("@"):
        raise Refused(Code.INVALID_REQUEST, f"--to {text}: it must be start, end, or @TIME as in consume -o")
    return parse_point(text, now_ms)


def read_offsets_file(name: str) -> dict[TopicPartition, int]:
    """Parses lines of topic, partition and offset with blanks between."""
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Refused(Code.INVALID_REQUEST, f"--to-file {name}: {reason}") from None
    out = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 3 or not is_number(words[1]) or not is_number(words[2], INT64_MAX):
            raise Refused(Code.INVALID_REQUEST, f"{name}:{number}: a line is TOPIC PARTITION OFFSET, not {line!r}")
        out[TopicPartition(words[0], int(words[1]))] = int(words[2])
    return out


def _explain_refusal(no: Refused, group: str) -> str:
    """Rephrases a refusal: Kafka refuses a commit by a non-member with UNKNOWN_MEMBER_ID while the group has
    members."""
    if no.code is Code.UNKNOWN_MEMBER_ID:
        return format_status(no.code.number, f"group {group} has members; stop them first")
    return format_status(no.code.number, None)
