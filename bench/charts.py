"""Figures as SVG charts: ours beside Kafka and the goal, or beside the goal alone.

`python -m bench.charts` draws the charts of docs/PERFORMANCE.md anew from the tables that stand in it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from bench.figures import Figure, number
from bench.peer.report import UNITS, ReportRow

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "PERFORMANCE.md"
PICTURES = ROOT / "docs" / "pictures"
MEASURED, PEER = PICTURES / "measured.svg", PICTURES / "beside-kafka.svg"

LABEL_WIDTH, BAR_WIDTH, TEXT_WIDTH = 440, 340, 270
ROW_HEIGHT, BAR_HEIGHT, TOP, BOTTOM = 34, 11, 64, 14
SHARE_MAX = 3.0
"""A bar is never longer than so many goals: its end is then open."""
CUT = "\N{BLACK RIGHT-POINTING TRIANGLE}"
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.dim { fill: #59636e } .title { font-size: 15px; font-weight: 600 }
.ours { fill: #2563eb } .kafka { fill: #9ca3af } .missed { fill: #dc2626 } .goal { stroke: #d97706; stroke-width: 2 }
.back { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .dim { fill: #9198a1 } .ours { fill: #60a5fa } .kafka { fill: #6b7280 } .missed { fill: #f87171 }
.goal { stroke: #fbbf24 } .back { fill: #0d1117 }
}
""".strip()


@dataclass(frozen=True)
class Bar:
    """One figure. `kafka` is None where nothing is compared, `goal` where there is none, in the unit of the figure."""

    name: str
    ours: float
    ours_text: str
    kafka: float | None = None
    kafka_text: str = ""
    goal: float | None = None
    goal_text: str = ""
    is_met: bool | None = None

    @property
    def scale(self) -> float:
        """The value at the end of the row: the largest of all that is drawn, or some goals where nothing else is."""
        if self.kafka is None and self.goal:
            return self.goal * SHARE_MAX
        return max(self.ours, self.kafka or 0.0, self.goal or 0.0) or 1.0


def draw(title: str, bars: Sequence[Bar]) -> str:
    """Returns a chart as SVG."""
    has_kafka = any(bar.kafka is not None for bar in bars)
    width, height = LABEL_WIDTH + BAR_WIDTH + TEXT_WIDTH, TOP + ROW_HEIGHT * len(bars) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
        *_draw_legend(has_kafka),
    ]
    for at, bar in enumerate(bars):
        lines += _draw_bar(bar, TOP + at * ROW_HEIGHT)
    return "\n".join([*lines, "</svg>", ""])


def _draw_legend(has_kafka: bool) -> list[str]:
    parts = [
        ("ours", "ours"),
        ("missed", "ours, the goal is missed or not proved"),
        *([("kafka", "Kafka")] if has_kafka else []),
    ]
    lines, x = [], 12
    for kind, words in parts:
        lines.append(f'<rect class="{kind}" x="{x}" y="36" width="12" height="12"/>')
        lines.append(f'<text class="dim" x="{x + 17}" y="46">{words}</text>')
        x += 40 + 7 * len(words)
    lines.append(f'<line class="goal" x1="{x + 6}" x2="{x + 6}" y1="35" y2="49"/>')
    lines.append(f'<text class="dim" x="{x + 14}" y="46">goal; each row has a scale of its own</text>')
    return lines


def _draw_bar(bar: Bar, y: int) -> list[str]:
    def length(value: float) -> float:
        return round(max(min(value / bar.scale, 1.0), 0.0) * BAR_WIDTH, 1)

    kind, end = "missed" if bar.is_met is False else "ours", LABEL_WIDTH + BAR_WIDTH
    lines = [f'<text x="{LABEL_WIDTH - 10}" y="{y + 14}" text-anchor="end">{escape(bar.name)}</text>']
    ours_y = y if bar.kafka is not None else y + 5
    lines.append(
        f'<rect class="{kind}" x="{LABEL_WIDTH}" y="{ours_y}" width="{length(bar.ours)}" height="{BAR_HEIGHT}"/>'
    )
    cut = f" {CUT}" if bar.ours > bar.scale else ""
    goal = f", goal {bar.goal_text}" if bar.goal_text else ""
    lines.append(f'<text x="{end + 10}" y="{ours_y + 10}">{escape(bar.ours_text + cut + goal)}</text>')
    if bar.kafka is not None:
        lines.append(
            f'<rect class="kafka" x="{LABEL_WIDTH}" y="{y + BAR_HEIGHT + 2}" width="{length(bar.kafka)}"'
            f' height="{BAR_HEIGHT}"/>'
        )
        lines.append(f'<text class="dim" x="{end + 10}" y="{y + BAR_HEIGHT + 12}">{escape(bar.kafka_text)}</text>')
    if bar.goal is not None:
        x = round(LABEL_WIDTH + length(bar.goal), 1)
        lines.append(f'<line class="goal" x1="{x}" x2="{x}" y1="{y - 3}" y2="{y + 2 * BAR_HEIGHT + 5}"/>')
    return lines


def bars_of_figures(figures: Iterable[Figure]) -> list[Bar]:
    """Returns the bars of a run of `make bench`."""
    return [
        Bar(
            each.name, each.value, f"{number(each.value)} {each.unit}", goal=each.goal, is_met=each.is_met,
            goal_text="" if each.goal is None else ("<= " if each.at_most else ">= ") + number(each.goal),
        )
        for each in figures
    ]  # fmt: skip


def bars_of_rows(titles: dict[str, str], rows: Iterable[ReportRow]) -> list[Bar]:
    """Returns the bars of a run of `make bench-peer`. A goal is a share of Kafka's figure, unless it is ours alone."""
    bars = []
    for each in rows:
        what = UNITS.sub("", each.metric).replace("_", " ")
        goal = None if each.goal is None else each.goal if each.is_own else each.goal * each.kafka
        text = "" if each.goal is None else f"{'<=' if each.at_most else '>='} {each.goal:g}"
        bars.append(
            Bar(
                f"{titles[each.workload]}: {what}", each.ours, f"{number(each.ours)} {each.unit}",
                each.kafka, f"{number(each.kafka)} {each.unit}", goal,
                text if not text or each.is_own else f"{text} of Kafka", each.met,
            )
        )  # fmt: skip
    return bars


def read_table(text: str, heading: str, first: str) -> list[list[str]]:
    """Returns the cells of the first table below a heading whose first column is called `first`."""
    below = text[text.index(f"\n{heading}\n") :]
    lines = below[below.index(f"| {first} |") :].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return rows


def parse_value(text: str) -> float | None:
    """Returns the number at the beginning of a cell, None if there is none. Both sides of a row have one unit."""
    found = re.match(r"(?:[<>]=? )?(-?[\d,]+(?:\.\d+)?)", text)
    return None if found is None else float(found[1].replace(",", ""))


def bars_of_page(text: str) -> tuple[list[Bar], list[Bar]]:
    """Returns the bars of the tables "Measured" and "Beside Kafka" of docs/PERFORMANCE.md."""
    measured, peer = [], []
    for name, ours, goal, verdict, *_ in _named(read_table(text, "## Measured", "Measure")):
        value, wanted = parse_value(ours), parse_value(goal)
        if value is not None and wanted is not None:
            measured.append(Bar(name, value, ours, goal=wanted, goal_text=goal, is_met=verdict.startswith("met")))
    for name, ours, kafka, _, goal, verdict in _named(read_table(text, "## Beside Kafka", "Measure")):
        value, theirs, share = parse_value(ours), parse_value(kafka), parse_value(goal)
        if value is not None and theirs is not None:
            wanted = None if share is None else share * theirs
            is_met = None if share is None else verdict.startswith("met")
            text_of_goal = f"{goal} of Kafka" if goal else ""
            peer.append(Bar(name, value, ours, theirs, kafka, wanted, text_of_goal, is_met))
    return measured, peer


def _named(rows: Iterable[list[str]]) -> list[list[str]]:
    """Returns rows whose first cell names its subject: "the same, CPU" follows the row that it is about."""
    named, last = [], ""
    for name, *rest in rows:
        if name.startswith("the same"):
            name = f"{last.partition(', CPU')[0]}: {name.removeprefix('the same').strip(' ,/')}"
        else:
            last = name
        named.append([name, *rest])
    return named


def charts_of_page(text: str) -> dict[Path, str]:
    """Returns the files of the charts of docs/PERFORMANCE.md."""
    measured, peer = bars_of_page(text)
    return {
        MEASURED: draw("Measured, beside the goals", measured),
        PEER: draw(
            "tiered beside Apache Kafka 4.2: rates (longer is better), costs and times (shorter is better)", peer
        ),
    }


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    for path, chart in charts_of_page(PAGE.read_text()).items():
        path.write_text(chart)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
