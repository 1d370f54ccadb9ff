"""`python -m bench.peer [WORKLOAD...]`: legs of ours and of Kafka in turn (A B B A), and their ratios.

Both brokers acknowledge from the page cache. Ours has its bucket in a directory. In legs this short no segment closes,
so nothing is copied to the bucket meanwhile, and the figures show nothing about tiering.

`--processes 1,2,4` runs ours with each of these numbers of processes, beside Kafka, which has one. Workloads with one
broker that all clients reach by its leaders suit that: closed-64, produce-1k, consume-1k and those like them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import confluent_kafka

from bench.charts import bars_of_rows, draw
from bench.figures import run_pairs
from bench.peer.brokers import KafkaBroker, MeasuredBroker, TieredBroker
from bench.peer.clients import build_loader
from bench.peer.machine import pin_cores, touch_memory, wait_quiet
from bench.peer.report import FOREIGN_SHARE, Pair, ReportRow, make_row, table
from bench.peer.workload import FULL, OF_PROCESSES, QUICK, Figures, Leg, Scale, Workload
from bench.peer.workloads import TITLES, WORKLOADS
from bench.results import start_run, write_results

SIDES: Mapping[str, type[MeasuredBroker]] = {"ours": TieredBroker, "kafka": KafkaBroker}
PAIRS, QUICK_PAIRS = 5, 1
REPEATS = 2
QUIET_SECONDS, QUICK_QUIET_SECONDS = 120.0, 0.0


class LegRunner:
    """Runs single legs, repeats those in which other processes had the cores, and writes each down."""

    def __init__(self, root: Path, scale: Scale, out: TextIO | None) -> None:
        self._root, self._scale, self._out = root, scale, out

    def run(self, workload: Workload, side: str, processes: int = 1) -> Figures:
        """Returns the first leg without foreign load, or the one with the least. Kafka has one process."""
        kind = TieredBroker.of_processes(processes) if side == "ours" else SIDES[side]
        best: Figures | None = None
        for _ in range(1 if self._scale is QUICK else 1 + REPEATS):
            share = wait_quiet(QUICK_QUIET_SECONDS if self._scale is QUICK else QUIET_SECONDS)
            figures = {**workload.run(Leg(self._root, self._scale, kind)), "busy_before": share}
            self.write_note(kind="leg", workload=workload.name, side=side, processes=processes, **figures)
            summary = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            print(f"{workload.name} {side} of {processes}: {summary}", file=sys.stderr, flush=True)
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


def compare(
    run: Callable[[Workload, str, int], Figures], workload: Workload, pairs: int, processes: Sequence[int] = (1,)
) -> list[ReportRow]:
    """Runs all pairs of one workload. A pair has a leg of ours for each number of processes, and one of Kafka."""

    def run_ours() -> dict[int, Figures]:
        return {count: run(workload, "ours", count) for count in processes}

    done = list(run_pairs(pairs, run_ours, lambda: {0: run(workload, "kafka", 1)}))
    metrics = workload.metrics if tuple(processes) == (1,) else (*workload.metrics, *OF_PROCESSES)
    return [
        make_row(workload, metric, [Pair(ours[count], kafka[0]) for ours, kafka in done], count)
        for count in processes
        for metric in metrics
    ]


def parse_counts(text: str) -> tuple[int, ...]:
    """Returns the numbers of a list with commas."""
    counts = tuple(int(each) for each in text.split(","))
    if min(counts) < 1:
        raise ValueError(text)
    return counts


def arguments() -> argparse.Namespace:
    names = [each.name for each in WORKLOADS]
    parser = argparse.ArgumentParser(
        prog="python -m bench.peer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--pairs", type=int, help=f"legs of each side (default {PAIRS}, quick {QUICK_PAIRS})")
    parser.add_argument("--quick", action="store_true", help="short legs that leave Kafka cold: for development only")
    parser.add_argument("--side", choices=sorted(SIDES), help="only this one: legs without ratios")
    parser.add_argument(
        "--processes", type=parse_counts, default=(1,), metavar="N,N", help="numbers of processes of ours (default 1)"
    )
    parser.add_argument("--cores", default="", help="such as 2,3, or all (default: the last two)")
    parser.add_argument("--out", type=Path, help="file for one JSON line per leg and per figure; appended to")
    parser.add_argument("--results", type=Path, metavar="DIR", help="folder of results, such as bench/results")
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
    run = None if args.results is None else start_run("quick legs" if args.quick else "")
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
                        for count in args.processes if args.side == "ours" else (1,):
                            runner.run(each, args.side, count)
                else:
                    done = compare(runner.run, each, args.pairs, args.processes)
                    rows += done
                    for row in done:
                        runner.write_note(kind="row", **asdict(row))
                    if run is not None:
                        write_results(args.results, run, (), done)
            except (RuntimeError, OSError, confluent_kafka.KafkaException) as error:
                failed.append(each.name)
                runner.write_note(kind="failure", workload=each.name, why=str(error))
                print(f"{each.name} failed: {error}", file=sys.stderr, flush=True)
    if rows:
        print(table(TITLES, rows))
        if args.chart is not None:
            args.chart.write_text(draw("tiered beside Apache Kafka", bars_of_rows(TITLES, rows)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
