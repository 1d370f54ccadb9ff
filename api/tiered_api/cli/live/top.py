"""`tiered top`: the brokers, topics and groups of a cluster on a terminal, anew with each reply."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from argparse import Namespace
from typing import TYPE_CHECKING

from tiered.errors import Code, Refused, Unavailable
from tiered_api.cli.exits import Exit
from tiered_api.cli.live.keys import LEAVE, read_keys
from tiered_api.cli.live.requests import TopRequests
from tiered_api.cli.live.top_state import TopState
from tiered_api.cli.live.top_table import SORTS, make_tables
from tiered_api.cli.output import print_error
from tiered_api.cli.reach import open_client
from tiered_api.cli.terminal import describe_missing, is_terminal, open_console
from tiered_api.kafka.client.client import KafkaClient

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

ROUND_SECONDS = 2.0
"""Pause between two rounds: no broker gets more than one request in it."""
KEYS_MAX = 16
KEYS = "q leaves   s sorts by the other column   r turns the order around"


async def top(args: Namespace) -> int:
    """Shows the cluster until its user leaves it."""
    async with open_client(args) as client:
        if not (is_terminal(sys.stdout) and sys.stdin.isatty()):
            words = "`tiered cluster brokers`, `topic list` and `group describe` are for scripts"
            raise Refused(Code.INVALID_REQUEST, f"top needs a terminal; {words}")
        if lack := describe_missing("top cannot draw"):
            print_error(lack)
            return Exit.MISSING
        await _draw(client)
    return Exit.OK


class _Order:
    """The order of topics and groups, which keys change."""

    def __init__(self) -> None:
        self.by_name = False
        self.is_reversed = False

    def on_key(self, key: str) -> None:
        self.by_name ^= key == "s"
        self.is_reversed ^= key == "r"


async def _draw(client: KafkaClient) -> None:
    from rich.live import Live

    state, order = TopState(), _Order()
    pressed: asyncio.Queue[str] = asyncio.Queue(KEYS_MAX)
    console = open_console(sys.stdout)
    requests = TopRequests(client, state, time.monotonic)
    await requests.run_round()  # an address that is wrong is an error, and no empty screen
    with Live(console=console, screen=True, auto_refresh=False) as live, read_keys(pressed):
        fault = ""

        async def ask() -> None:
            nonlocal fault
            while True:
                await asyncio.sleep(ROUND_SECONDS)
                try:
                    await requests.run_round()
                    fault = ""
                except Unavailable as unreachable:
                    fault = str(unreachable)
                live.update(_render(console, state, order, fault), refresh=True)

        asking = asyncio.create_task(ask(), name="top")
        try:
            live.update(_render(console, state, order, fault), refresh=True)
            while (key := await _next_key(pressed, asking)) not in (LEAVE, "\x03"):
                order.on_key(key)
                live.update(_render(console, state, order, fault), refresh=True)
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking


async def _next_key(pressed: asyncio.Queue[str], asking: asyncio.Task[None]) -> str:
    """Returns the next key. Raises the error that ended the requests."""
    key = asyncio.create_task(pressed.get())
    await asyncio.wait([key, asking], return_when=asyncio.FIRST_COMPLETED)
    if not key.done():
        key.cancel()
        asking.result()
    return await key


def _render(console: Console, state: TopState, order: _Order, fault: str) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    sort = SORTS[order.by_name] + (", reversed" if order.is_reversed else "")
    at = time.strftime("%H:%M:%S")
    counts = f"{len(state.brokers)} brokers, {len(state.topics):,} topics, {len(state.groups):,} groups"
    parts: list[RenderableType] = [Text(f"{at}  {counts}  by {sort}", style="bold", no_wrap=True, overflow="ellipsis")]
    if fault:
        parts.append(Text(f"not reached: {fault}", style="red", no_wrap=True, overflow="ellipsis"))
    for made in make_tables(state, console.height, by_name=order.by_name, is_reversed=order.is_reversed):
        table = Table(box=None, pad_edge=False, header_style="reverse", expand=True)
        for name in made.headings:
            is_number = name in ("LEADERS", "REPLICAS", "PARTITIONS", "LACKING", "RECORDS", "LAG", "WAITING")
            is_number = is_number or name.endswith("/S")
            table.add_column(name, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
        for row in made.rows:
            table.add_row(*(Text(cell.text, style="red" if cell.is_bad else "") for cell in row))
        parts += [table, Text(f"... {made.left_out:,} more" if made.left_out else "", style="dim")]
    return Group(*parts, Text(KEYS, style="dim", no_wrap=True))
