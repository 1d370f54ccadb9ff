"""Figures as SVG charts: ours beside Kafka and the goal, or beside the goal alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.figures import Figure, number
from bench.peer.report import UNITS, ReportRow, name_workload

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
            each.name, each.value, f"{number(each.value)} {each.unit}".strip(), goal=each.goal, is_met=each.is_met,
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
                f"{name_workload(titles, each)}: {what}", each.ours, f"{number(each.ours)} {each.unit}".strip(),
                each.kafka, f"{number(each.kafka)} {each.unit}".strip(), goal,
                text if not text or each.is_own else f"{text} of Kafka", each.met,
            )
        )  # fmt: skip
    return bars
