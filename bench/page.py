"""Writes docs/PERFORMANCE.md and its charts: the last result of each figure, beside the goal of today.

python -m bench.page       writes the page and its charts anew, from `bench/results/`
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.charts import bars_of_figures, bars_of_rows, draw
from bench.figures import number
from bench.peer.report import UNITS, VERDICTS, ReportRow
from bench.peer.workload import OF_PROCESSES, Metric, Workload
from bench.peer.workloads import TITLES, WORKLOADS
from bench.results import ROOT, Compared, Measured, Result, Run, newest_figures, newest_rows, read_results

PAGE = ROOT / "docs" / "PERFORMANCE.md"
PICTURES = ROOT / "docs" / "pictures"
MEASURED, PEER = PICTURES / "measured.svg", PICTURES / "beside-kafka.svg"
LAB_BOOK = ROOT / "bench" / "lab-book"
ALWAYS_SHOWN = {"rate", "cpu", "p50_us", "p99_us"}
"""Metrics that the page has without a goal. The files of results have all others."""
TITLE_MAX = 48
"""Characters of a title for which a chart has room."""
NOT_PROVED = "not proved"
"""Verdict on a goal within the interval."""

HEAD = """\
# Performance

For people who choose, and for contributors: read the measured figures beside their goals, and measure them again.

Written by `python -m bench.page` from [bench/results](../bench/results): the last result of each figure, beside its
goal. `make bench` measures on the machine it runs on, `make bench-peer` runs our broker and Apache Kafka 4.2
in turn on two cores, and both write the results and this page. A single bench is
`.venv/bin/python -m bench append --results bench/results`, then `python -m bench.page`. Close all other programs first:
figures per CPU-second are still right on a busy machine, rates and times are not.

A busy machine changes no count: `tests/counts/kept.json` has the calls of functions, bytecodes, allocated
blocks and system calls of each hot request, and those of a start and an idle broker. `make check` fails if one grows by
more than 2 % (CONTRIBUTING.md).
"""
ABOUT_MEASURED = """\
## Measured

![Each measured figure as a bar beside its goal](pictures/measured.svg)
"""
ABOUT_PEER = """\
## Beside Kafka

![Each figure as two bars, ours and Kafka's, with the goal as a mark](pictures/beside-kafka.svg)

Both get the same client (librdkafka, or a raw C client), the same flags and fresh data for each leg, A B B A; the JVM
has a heap of 1 GB and is warmed up. Both acknowledge from the page cache. The ratio, ours / Kafka, is the median of the
pairs with its 95 % interval and the number of pairs, or that of a single pair. A goal is for the ratio, unless it is
ours alone. It is met if the whole interval meets it, and not proved if the goal lies within the interval. `~` marks a
ratio of legs beside other work.
"""
ABOUT_PROCESSES = """\
## Processes of a machine

One machine with so many processes (`tiered.processes`), beside one broker of Kafka on the same cores. Each connection
of the closed loop goes to the leader of its partition. Memory of its own is the sum of the processes. Shared memory is
that of one process; most of it is the program.
"""
ABOUT_RUNS = """\
## Runs

Results of a page before these files keep the date and the machine that it names; it names no commit.
"""
ABOUT_LAB_BOOK = """\
## Lab book

Explanations, experiments and runs that no bench repeats: attacks, faults of real brokers, simulations, mutants.
"""


class RunLabels:
    """A short label for each run, in the order of their first use, and the table of them."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str, str, str], str] = {}

    def find(self, run: Run) -> str:
        """Returns the label. Runs of one day, commit and machine have the same."""
        key = run.day, run.commit, str(run.machine), run.how
        return self._labels.setdefault(key, f"{run.day[5:].replace('-', '')}{_letter(self._labels, run.day)}")

    def lines(self) -> list[str]:
        lines = ["| Run | Date | Commit | Machine | How |", "| --- | --- | --- | --- | --- |"]
        return [*lines, *(f"| {label} | {' | '.join(key)} |" for key, label in sorted(self._labels.items()))]


def _letter(labels: Mapping[tuple[str, str, str, str], str], day: str) -> str:
    """Returns the letter of the next run of a day."""
    return chr(ord("a") + sum(key[0] == day for key in labels))


def judge(row: ReportRow, metric: Metric) -> ReportRow:
    """Returns a row with the goal of today and its verdict."""
    if metric.goal == row.goal:
        return row
    low, high = (row.ours, row.ours) if metric.is_own else (row.low, row.high)
    return replace(row, goal=metric.goal, at_most=metric.at_most, is_own=metric.is_own, met=metric.is_met(low, high))


def verdict_of(row: ReportRow) -> str:
    """Returns the cell: met, missed, or not proved because the interval has values on both sides of the goal."""
    if row.met is False and not row.is_own and row.goal is not None and row.low <= row.goal <= row.high:
        return NOT_PROVED
    return VERDICTS[row.met]


def judged_rows(results: Iterable[Result]) -> list[Compared]:
    """Returns the last result of each metric of a workload of today, with the goal of today."""
    newest = newest_rows(results)
    counts = sorted({processes for _, _, processes in newest})
    return [
        replace(found, row=judge(found.row, metric))
        for workload in WORKLOADS
        for count in counts
        for metric in (*workload.metrics, *OF_PROCESSES)
        if (found := newest.get((workload.name, metric.key, count))) is not None
    ]


def measured_lines(figures: Iterable[Measured], labels: RunLabels) -> list[str]:
    lines = ["| Figure | Measured | Goal | | How | Run |", "| --- | ---: | ---: | --- | --- | --- |"]
    for each in figures:
        figure = each.figure
        goal = "" if figure.goal is None else f"{'<=' if figure.at_most else '>='} {number(figure.goal)}"
        value = f"{number(figure.value)} {figure.unit}".strip()
        cells = [figure.name, value, goal, VERDICTS[figure.is_met], figure.note, labels.find(each.run)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def name_metric(row: ReportRow) -> str:
    return f"{UNITS.sub('', row.metric).replace('_', ' ')} ({row.unit})" if row.unit else row.metric.replace("_", " ")


def peer_lines(rows: Sequence[Compared], labels: RunLabels) -> list[str]:
    """Returns the table of single brokers, with the goals that were never measured."""
    lines = ["| Workload | Figure | Ours | Kafka | Ours / Kafka | Goal | | Run |"]
    lines.append("| --- | --- | ---: | ---: | --- | ---: | --- | --- |")
    found = {(each.row.workload, each.row.metric): each for each in rows}
    for workload in WORKLOADS:
        title = workload.title
        for metric in workload.metrics:
            result = found.get((workload.name, metric.key))
            goal = "" if metric.goal is None else f"{'<=' if metric.at_most else '>='} {metric.goal:g}"
            goal += " (ours)" if metric.goal is not None and metric.is_own else ""
            if result is None:
                if metric.goal is None:
                    continue
                cells = [title, f"{UNITS.sub('', metric.key).replace('_', ' ')} ({metric.unit})", "", "", "", goal]
                cells += ["not measured", ""]
            else:
                row = result.row
                interval = f" ({row.low:.2f}-{row.high:.2f}, {row.pairs} pairs)" if row.low < row.high else ""
                cells = [
                    title,
                    name_metric(row),
                    number(row.ours),
                    number(row.kafka),
                    f"{'~' if row.noisy_pairs else ''}{row.ratio:.2f}{interval}",
                    goal,
                ]
                cells += [verdict_of(row), labels.find(result.run)]
            title = ""
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def process_lines(rows: Sequence[Compared], labels: RunLabels) -> list[str]:
    """Returns the table of machines: a column for each number of processes."""
    counts = sorted({each.row.processes for each in rows})
    lines = [f"| Workload | Figure | {' | '.join(f'{count}' for count in counts)} | Kafka | Run |"]
    lines.append(f"| --- | --- |{' ---: |' * len(counts)} ---: | --- |")
    several = {each.row.workload for each in rows if each.row.processes > 1}
    table: dict[tuple[str, str], dict[int, Compared]] = {}
    for each in rows:
        if each.row.workload in several:
            table.setdefault((each.row.workload, each.row.metric), {})[each.row.processes] = each
    last = ""
    for (workload, _), found in table.items():
        newest = max(found.values(), key=lambda each: each.run.at)
        values = [number(found[count].row.ours) if count in found else "" for count in counts]
        title, last = "" if workload == last else TITLES[workload], workload
        cells = [title, name_metric(newest.row), *values, number(newest.row.kafka), labels.find(newest.run)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def lab_book_lines() -> list[str]:
    """Returns the days of the lab book with the headings of each."""
    lines = ["| Day | Contents |", "| --- | --- |"]
    for path in sorted(LAB_BOOK.glob("*.md"), reverse=True):
        headings = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
        lines.append(f"| [{path.stem}](../bench/lab-book/{path.name}) | {'; '.join(headings)} |")
    return lines


def short_title(workload: Workload) -> str:
    """Returns the title of a workload in a chart: its name, if the title is long or depends on the one before."""
    title = workload.title
    return workload.name if len(title) > TITLE_MAX or "the same" in title else title


def is_shown(row: ReportRow) -> bool:
    return row.goal is not None or row.metric in ALWAYS_SHOWN


def write_page(results: Sequence[Result]) -> dict[Path, str]:
    """Returns the page and its charts, by their paths."""
    figures = list(newest_figures(results).values())
    rows = judged_rows(results)
    single = [each for each in rows if each.row.processes == 1 and is_shown(each.row)]
    labels = RunLabels()
    parts = [HEAD, ABOUT_MEASURED, *measured_lines(figures, labels), "", ABOUT_PEER, *peer_lines(single, labels), ""]
    if any(each.row.processes > 1 for each in rows):
        parts += [ABOUT_PROCESSES, *process_lines(rows, labels), ""]
    parts += [ABOUT_RUNS, *labels.lines(), "", ABOUT_LAB_BOOK, *lab_book_lines(), ""]
    titles = {each.name: short_title(each) for each in WORKLOADS}
    with_goal = [each.figure for each in figures if each.figure.goal is not None]
    about = "tiered beside Apache Kafka 4.2: rates (longer is better), costs and times (shorter is better)"
    return {
        PAGE: "\n".join(parts),
        MEASURED: draw("Measured, beside the goals", bars_of_figures(with_goal)),
        PEER: draw(about, bars_of_rows(titles, [each.row for each in single if each.row.goal is not None])),
    }


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    for path, text in write_page(read_results()).items():
        path.write_text(text)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
