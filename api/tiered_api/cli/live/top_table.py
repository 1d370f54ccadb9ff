"""The tables of `tiered top`: rows as texts, sorted, and cut to the lines of the screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiered_api.cli.live.sparkline import sparkline
from tiered_api.cli.live.top_state import TopState
from tiered_api.cli.output import format_size
from tiered_api.cli.text.visible import visible

COURSE_WIDTH = 16
BROKERS = ("BROKER", "ADDRESS", "LEADERS", "REPLICAS", "IN/S", "OUT/S", "WAITING", "STATE")
TOPICS = ("TOPIC", "PARTITIONS", "LACKING", "RECORDS", "RECORDS/S")
GROUPS = ("GROUP", "STATE", "LAG", "COURSE")
SORTS = ("busiest", "name")
"""Orders of topics and groups: by records a second and lag, or by their names."""
FRAME_LINES = 9
"""Lines of the screen that are no rows: the title, three headings, the lines between, and the keys."""
LISTED_MIN = 3


class Cell(NamedTuple):
    """A text, and True if it needs a look."""

    text: str
    is_bad: bool = False


class Table(NamedTuple):
    """One table: headings, rows, and how many rows have no room."""

    headings: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    left_out: int


def make_tables(state: TopState, lines: int, *, by_name: bool, is_reversed: bool) -> list[Table]:
    """Returns the tables of brokers, topics and groups for a screen of so many lines."""
    brokers = [_broker_row(state, node) for node in state.brokers]
    topics = sorted(state.topics.values(), key=lambda each: each.name)
    groups = sorted(state.groups.values(), key=lambda each: each.name)
    if not by_name:
        topics.sort(key=lambda each: -(each.ends.rate or 0))
        groups.sort(key=lambda each: -(_last(each.lags.samples) or 0))
    if is_reversed:
        topics.reverse()
        groups.reverse()
    wanted = (len(brokers), len(topics), len(groups))
    room = share_lines(wanted, lines - FRAME_LINES)
    return [
        Table(BROKERS, brokers[: room[0]], max(wanted[0] - room[0], 0)),
        Table(
            TOPICS,
            [
                (
                    Cell(visible(each.name)), Cell(f"{each.partitions:,}"), Cell(f"{each.lacking:,}", each.lacking > 0),
                    Cell(_amount(_last(each.ends.samples))), Cell(_amount(each.ends.rate)),
                )
                for each in topics[: room[1]]
            ],
            max(wanted[1] - room[1], 0),
        ),
        Table(
            GROUPS,
            [
                (
                    Cell(visible(each.name)), Cell(each.state), Cell(_amount(_last(each.lags.samples))),
                    Cell(sparkline([lag for _, lag in each.lags.samples], COURSE_WIDTH)),
                )
                for each in groups[: room[2]]
            ],
            max(wanted[2] - room[2], 0),
        ),
    ]  # fmt: skip


def share_lines(wanted: Sequence[int], lines: int) -> list[int]:
    """Returns how many rows each table gets. A table that needs less than its share leaves the rest to the others."""
    room = [0] * len(wanted)
    left = max(lines, LISTED_MIN * len(wanted))
    open_tables = sorted(range(len(wanted)), key=lambda at: wanted[at])
    for number, at in enumerate(open_tables):
        room[at] = min(wanted[at], left // (len(open_tables) - number))
        left -= room[at]
    return room


def _broker_row(state: TopState, node: int) -> tuple[Cell, ...]:
    each = state.brokers[node]
    name = f"{node}{' controller' if node == state.controller else ''}"
    waiting = "-" if each.waiting_segments is None else f"{each.waiting_segments:,}"
    words = each.fault or (each.problems[0] if each.problems else "healthy")
    more = f" (and {len(each.problems) - 1} more)" if not each.fault and len(each.problems) > 1 else ""
    return (
        Cell(name), Cell(each.address), Cell(f"{each.leaders:,}"), Cell(f"{each.replicas:,}"),
        Cell(_bytes(each.bytes_in.rate)), Cell(_bytes(each.bytes_out.rate)), Cell(waiting),
        Cell(visible(words) + more, bool(each.fault or each.problems)),
    )  # fmt: skip


def _last(samples: Sequence[tuple[float, float]]) -> float | None:
    return samples[-1][1] if samples else None


def _amount(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _bytes(value: float | None) -> str:
    return "-" if value is None else format_size(value)
