"""Draws the bars of topics on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from tiered_api.cli.output import Row
from tiered_api.cli.terminal import WIDTH_MAX, open_console
from tiered_api.cli.text.visible import visible
from tiered_api.cli.topic.tier_bars import Mark, Tier, draw_bars


def draw_topics(topics: Mapping[str, Sequence[Row]], stable: Mapping[str, Sequence[int | None]]) -> None:
    """Draws a bar for each partition, and the legend of what is drawn. `stable`: the last stable offsets by topic."""
    from rich.text import Text

    console = open_console(sys.stdout)
    width = min(console.width, WIDTH_MAX)
    drawn = set[Tier | Mark]()
    for name, rows in topics.items():
        console.print(Text(visible(name), style="bold"), soft_wrap=True)
        lines = draw_bars(rows, width, stable.get(name, ()))
        columns = [max(len(line[at]) for line in lines) for at in (0, 1, 3)] if lines else []
        for line in lines:
            text = Text(f"{line.partition:>{columns[0]}} {line.start:>{columns[1]}} ")
            for piece in line.pieces:
                text.append(piece.tier.character * piece.cells, style=piece.tier.colour)
                drawn.add(piece.tier)
            text.append(f" {line.end:<{columns[2]}} {line.sizes}")
            console.print(text, soft_wrap=True)
            if line.marks:
                text = Text(" " * (columns[0] + columns[1] + 2))
                for mark in line.marks:
                    text.append(mark.character, style=mark.colour)
                drawn.update(line.marks)
                text.append(f" {' ' * columns[2]} {visible(line.positions)}".rstrip())
                console.print(text, soft_wrap=True)
    legend = Text()
    for kind in (*Tier, *Mark):
        if kind in drawn and kind is not Mark.NOTHING:
            legend.append(f"{kind.character * 2} ", style=kind.colour).append(f"{kind.words}   ")
    console.print(legend, soft_wrap=True)
