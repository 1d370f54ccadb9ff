"""`tiered cold verify`: missing and damaged objects of topics in a bucket, found without any broker."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace

from tiered.errors import Code, Refused
from tiered.offline.bucket import open_bucket
from tiered.offline.object_check import CheckCounts, Finding, ObjectCheck
from tiered.system.clock import SystemClock
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import format_size, print_json, print_lines
from tiered_api.cli.progress import Progress, show_progress
from tiered_api.cli.terminal import is_terminal

PROGRESS_NS = 5_000_000_000
"""Time between two lines of progress."""


def verify(args: Namespace) -> int:
    """Prints each finding at once, and the counts at the end. Fails if an object is missing or damaged."""
    if args.partition is not None and args.topic is None:
        raise Refused(Code.INVALID_REQUEST, "--partition needs --topic")
    with show_progress(args, "verify the bucket") as shown:
        counts = asyncio.run(_verify(args, shown))
    return Exit.OK if counts.is_whole else Exit.FAILED


async def _verify(args: Namespace, shown: Progress) -> CheckCounts:
    def report(finding: Finding) -> None:
        if args.format == "json":
            print_json(finding._asdict())
        else:
            print_lines([_describe(finding)])

    async with open_bucket(args.store) as bucket:
        lines = _Lines()
        total = 0

        def on_counts(counts: CheckCounts) -> None:
            lines.show(counts)
            shown.report(counts.partitions, total, f"of {total:,} partitions")

        check = ObjectCheck(bucket.store, bucket.manifests, report, on_counts, reads_all=args.read)
        if args.topic is None:
            image = await bucket.read_image()
            total = image.partition_count
            counts = await check.check_all(image)
        else:
            topic = await bucket.find_topic(args.topic)
            total = len(topic.partitions) if args.partition is None else 1
            if args.partition is not None and args.partition >= len(topic.partitions):
                why = f"{topic.name} has partitions 0 to {len(topic.partitions) - 1}, not {args.partition}"
                raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, why)
            counts = await check.check_topic(topic, args.partition)
        requests = sum(bucket.count_requests().values())
    if args.format == "json":
        print_json({**counts._asdict(), "requests": requests})
    else:
        print_lines([_sum_up(counts, args.read), f"{requests} requests to the bucket"])
    return counts


class _Lines:
    """Lines on the error stream now and then, where no progress is drawn."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._shown_ns = self._clock.mono_ns()

    def show(self, counts: CheckCounts) -> None:
        """Prints the counts so far if it is time."""
        now_ns = self._clock.mono_ns()
        if now_ns - self._shown_ns >= PROGRESS_NS and not is_terminal(sys.stderr):
            self._shown_ns = now_ns
            done = f"{counts.segments} segments of {counts.partitions} partitions are checked"
            print(f"{done}: {counts.missing} missing, {counts.damaged} damaged", file=sys.stderr, flush=True)


def _describe(finding: Finding) -> str:
    where = f"{finding.topic}-{finding.partition}" if finding.partition >= 0 else "no topic"
    offsets = f" offsets {finding.base_offset} to {finding.next_offset}" if finding.next_offset >= 0 else ""
    return f"{finding.kind.value}: {where}{offsets} {finding.key}: {finding.why}"


def _sum_up(counts: CheckCounts, is_read: bool) -> str:
    """Returns the result in a sentence."""
    how = "every byte was read" if is_read else "sizes and footers were compared; --read compares every byte"
    found = f"{counts.missing} objects are missing, {counts.damaged} are damaged"
    left = f"{counts.unreferenced} ({format_size(counts.unreferenced_bytes)}) are named by no manifest"
    whole = f"{counts.segments} segments ({format_size(counts.object_bytes)}) of {counts.partitions} partitions"
    return f"{whole}: {found}, {left}; {how}"
