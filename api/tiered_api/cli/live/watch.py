"""`tiered group describe --watch`: groups again and again. A terminal shows the course of each lag, and its trend."""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime

from tiered.errors import Refused
from tiered_api.cli.exits import Exit
from tiered_api.cli.group import groups
from tiered_api.cli.group.groups import GroupReport, describe_groups, format_group
from tiered_api.cli.live.sparkline import describe_trend, sparkline
from tiered_api.cli.output import print_error, print_json, print_lines
from tiered_api.cli.reach import open_client
from tiered_api.cli.terminal import can_draw, open_console

WATCH_SECONDS = 2.0
SAMPLES_MAX = 60
COURSE_WIDTH = 60


class LagCourses:
    """The lags of groups over time."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, int]]] = {}

    def add(self, now: float, reports: Sequence[GroupReport]) -> None:
        """Adds the lag of each group. A group that is gone is forgotten."""
        here = {each.name: each.lag for each in reports}
        self._samples = {name: self._samples.get(name, deque(maxlen=SAMPLES_MAX)) for name in here}
        for name, lag in here.items():
            self._samples[name].append((now, lag))

    def describe(self, name: str) -> str:
        """Returns the course of a group's lag, and its trend in words."""
        samples = self._samples[name]
        drawn = sparkline([lag for _, lag in samples], COURSE_WIDTH)
        return f"LAG  {drawn} {samples[-1][1]:,}  {describe_trend(samples)}".rstrip()


async def describe(args: Namespace) -> int:
    """Describes groups, with `--watch` until Ctrl-C: a row for each look in pipes."""
    if not args.watch:
        return await groups.describe(args)
    is_drawn = args.format == "text" and can_draw(sys.stdout, "no lag is drawn", "--format json")
    await (_draw(args) if is_drawn else _print(args))
    return Exit.OK


async def _print(args: Namespace) -> None:
    async with open_client(args) as client:
        if args.format == "text":
            print_lines(["TIME  GROUP  STATE  MEMBERS  LAG"])
        while True:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            for each in await describe_groups(client, args):
                if isinstance(each, Refused):
                    print_error(each.why)
                elif args.format == "json":
                    print_json({"time": at, **each.head()})
                else:
                    print_lines([f"{at}  {each.name}  {each.state}  {len(each.members)}  {each.lag}"])
            sys.stdout.flush()
            await asyncio.sleep(WATCH_SECONDS)


async def _draw(args: Namespace) -> None:
    from rich.live import Live
    from rich.text import Text

    courses = LagCourses()
    async with open_client(args) as client:
        with Live(console=open_console(sys.stdout), auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                found = await describe_groups(client, args)
                reports = [each for each in found if isinstance(each, GroupReport)]
                courses.add(time.monotonic(), reports)
                lines = [each.why for each in found if isinstance(each, Refused)]
                for each in reports:
                    lines += [courses.describe(each.name), *format_group(each, args), ""]
                live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
                await asyncio.sleep(WATCH_SECONDS)
