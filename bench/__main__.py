"""`python -m bench [NAME...]`: runs benchmarks and prints each figure beside its goal, as Markdown."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from bench.charts import bars_of_figures, draw
from bench.figures import Figure, table
from bench.results import start_run, write_results

NAMES = (
    "append", "http_load", "start", "empty_disk", "cold", "delta", "requests", "replaced", "compaction",
    "transactions_load", "typed", "iceberg", "sql_on_s3", "console",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--chart", type=Path, help="file for a chart of the figures, as SVG")
    parser.add_argument("--results", type=Path, metavar="DIR", help="folder of results, such as bench/results")
    args = parser.parse_args()
    names = args.names or NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"unknown bench {unknown[0]!r}: known are {', '.join(NAMES)}")
    figures: list[Figure] = []
    run = None if args.results is None else start_run()
    for name in names:
        print(f"bench {name} ...", file=sys.stderr, flush=True)
        found = importlib.import_module(f"bench.{name}").main()
        figures += found
        if run is not None:
            write_results(args.results, run, [(name, each) for each in found], ())
    print(table(figures))
    if args.chart is not None:
        args.chart.write_text(draw("Measured, beside the goals", bars_of_figures(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
