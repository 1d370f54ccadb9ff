"""`python -m bench.peer [WORKLOAD...]`: legs of ours and of Kafka in turn (A B B A), and their ratios.

Both brokers acknowledge from the page cache. Ours has its bucket in a directory. In legs this short no segment closes,
so nothing is copied to the bucket meanwhile, and the figures show nothing about tiering.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import confluent_kafka

from bench.charts import bars_of_rows, draw
from bench.figures import run_pairs
from bench.peer import (
    cleaning,
    groups,
    handshakes,
    latency,
    lifecycle,
    replicated,
    tenants,
    throughput,
    transactions,
)
from bench.peer.brokers import KafkaBroker, MeasuredBroker, TieredBroker
from bench.peer.clients import build_loader
from bench.peer.machine import pin_cores, touch_memory, wait_quiet
from bench.peer.report import FOREIGN_SHARE, Pair, ReportRow, make_row, table
from bench.peer.workload import FULL, QUICK, Figures, Leg, Scale, Workload

WORKLOADS = (
    *throughput.WORKLOADS, *latency.WORKLOADS, *lifecycle.WORKLOADS, *groups.WORKLOADS, *replicated.WORKLOADS,
    *transactions.WORKLOADS, *cleaning.WORKLOADS, *handshakes.WORKLOADS, *tenants.WORKLOADS,
)  # fmt: skip
SIDES: Mapping[str, type[MeasuredBroker]] = {"ours": TieredBroker, "kafka": KafkaBroker}
PAIRS, QUICK_PAIRS = 5, 1
REPEATS = 2
QUIET_SECONDS, QUICK_QUIET_SECONDS = 120.0, 0.0


class LegRunner:
    """Runs single legs, repeats those in which other processes had the cores, and writes each down."""

    def __init__(self, root: Path, scale: Scale, out: TextIO | None) -> None:
        self._root, self._scale, self._out = root, scale, out

    def run(self, workload: Workload, side: str) -> Figures:
        """Returns the first leg without foreign load, or the one with the least."""
        best: Figures | None = None
        for _ in range(1 if self._scale is QUICK else 1 + REPEATS):
            share = wait_quiet(QUICK_QUIET_SECONDS if self._scale is QUICK else QUIET_SECONDS)
            figures = {**workload.run(Leg(self._root, self._scale, SIDES[side])), "busy_before": share}
            self.write_note(kind="leg", workload=workload.name, side=side, **figures)
            summary = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            print(f"{workload.name} {side}: {summary}", file=sys.stderr, flush=True)
            if best is None or figures["foreign"] < best["foreign"]:
                best = figures
            if best["foreign"] <= FOREIGN_SHARE:
                break
        assert best is not None
        return best

    def write_note(self, **what: object) -> None:
        """Writes one JSON line."""
        if self._out is not None:
            self._out.write(json.dumps(what) + "\n")
            self._out.flush()


def compare(runner: LegRunner, workload: Workload, pairs: int) -> list[ReportRow]:
    """Runs all pairs of one workload."""
    done = [
        Pair(ours, kafka)
        for ours, kafka in run_pairs(pairs, lambda: runner.run(workload, "ours"), lambda: runner.run(workload, "kafka"))
    ]
    rows = [make_row(workload, metric, done) for metric in workload.metrics]
    for each in rows:
        runner.write_note(kind="row", **asdict(each))
    return rows


def arguments() -> argparse.Namespace:
    names = [each.name for each in WORKLOADS]
    parser = argparse.ArgumentParser(
        prog="python -m bench.peer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--pairs", type=int, help=f"legs of each side (default {PAIRS}, quick {QUICK_PAIRS})")
    parser.add_argument("--quick", action="store_true", help="short legs that leave Kafka cold: for development only")
    parser.add_argument("--side", choices=sorted(SIDES), help="only this one: legs without ratios")
    parser.add_argument("--cores", default="", help="such as 2,3, or all (default: the last two)")
    parser.add_argument("--out", type=Path, help="file for one JSON line per leg and per figure; appended to")
    parser.add_argument("--chart", type=Path, help="file for a chart of the figures, as SVG")
    parser.add_argument("--dir", type=Path, help="where brokers keep their data (default: the temporary directory)")
    args = parser.parse_args()
    unknown = [name for name in args.workloads if name not in names]
    if unknown:
        parser.error(f"unknown workload {unknown[0]!r}")
    args.pairs = args.pairs or (QUICK_PAIRS if args.quick else PAIRS)
    return args


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # stops the brokers and removes their data
    cores = pin_cores(args.cores)
    scale = QUICK if args.quick else FULL
    workloads = [each for each in WORKLOADS if each.name in (args.workloads or [each.name])]
    out = args.out.open("a") if args.out else None
    rows: list[ReportRow] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tiered-bench-", dir=args.dir) as directory:
        runner = LegRunner(Path(directory), scale, out)
        version = subprocess.run(
            [str(build_loader()), "version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        runner.write_note(
            kind="run", cores=cores, kernel=os.uname().release, librdkafka=version, pairs=args.pairs, **asdict(scale)
        )
        if not args.quick:
            touch_memory(Path(directory))
        for each in workloads:
            try:
                if args.side:
                    for _ in range(args.pairs):
                        runner.run(each, args.side)
                else:
                    rows += compare(runner, each, args.pairs)
            except (RuntimeError, OSError, confluent_kafka.KafkaException) as error:
                failed.append(each.name)
                runner.write_note(kind="failure", workload=each.name, why=str(error))
                print(f"{each.name} failed: {error}", file=sys.stderr, flush=True)
    if rows:
        titles = {each.name: each.title for each in WORKLOADS}
        print(table(titles, rows))
        if args.chart is not None:
            args.chart.write_text(draw("tiered beside Apache Kafka", bars_of_rows(titles, rows)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
