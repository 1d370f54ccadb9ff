"""The figures of attacks as a table in Markdown.

python -m tests.hostile.figures FIGURES.jsonl [PAGE]   prints the table of what `make hostile OUT=...` wrote, or
writes it into a page, between its two marks
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HEAD = """\
| Attack | quiet p99 (ms) | p50, p99, worst (ms) | Memory, bound (MB) | Waits for a core | Seconds |
| --- | ---: | ---: | ---: | ---: | ---: |"""
BEGIN, END = "<!-- begin: figures of `make hostile` -->", "<!-- end: figures of `make hostile` -->"


def make_table(measured: Iterable[dict[str, Any]]) -> str:
    """Returns the table of all lines that have latencies. An attack that was measured again has its last line."""
    rows = {each["attack"]: each for each in measured if "memory_bound_mb" in each}
    return "\n".join([HEAD, *map(_row, rows.values())])


def _row(each: dict[str, Any]) -> str:
    waits = ", ".join(f"{each.get(name, 0):g}" for name in ("p50", "p99", "worst"))
    memory = f"{each['memory_mb']}, {each['memory_bound_mb']}"
    quiet, seconds = f"{each.get('quiet_p99', 0):g}", f"{each['seconds']:g}"
    return f"| {each['attack']} | {quiet} | {waits} | {memory} | {each['queued']:.2f} | {seconds} |"


def replace_table(page: Path, table: str) -> None:
    """Writes a table between the two marks of a page."""
    before, begin, rest = page.read_text().partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks {BEGIN} or {END}")
    page.write_text(f"{before}{begin}\n{table}\n\n{end}{after}")


def main(figures: str, page: str = "") -> None:
    table = make_table(json.loads(line) for line in Path(figures).read_text().splitlines())
    if page:
        replace_table(Path(page), table)
    else:
        print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
