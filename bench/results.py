"""Results of runs in `bench/results/`: a file for each day, commit and machine, with a JSON line for each figure.

A line of the kind `run` comes first: its time, commit and machine. The figures of that run follow. A later run of the
same day, commit and machine is appended.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import Figure
from bench.peer.report import ReportRow

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
NOT_RECORDED = "not recorded"
"""A commit, or a part of a machine, that an old page does not name."""
COMMIT_DIGITS = 8


@dataclass(frozen=True)
class Machine:
    """Everything of a machine that changes a figure, and nothing that names it."""

    cores: int | None
    cpu: str
    memory_gb: int | None
    kernel: str
    python: str

    @property
    def slug(self) -> str:
        """Returns the part of a file's name."""
        cores = "machine" if self.cores is None else f"{self.cores} cores"
        return re.sub(r"[^a-z0-9]+", "-", f"{cores} {self.cpu}".lower()).strip("-")

    def __str__(self) -> str:
        if self.cpu == NOT_RECORDED:
            return NOT_RECORDED if self.cores is None else f"{self.cores} cores, else {NOT_RECORDED}"
        return f"{self.cores} cores of {self.cpu}, {self.memory_gb} GB, Linux {self.kernel}, Python {self.python}"


@dataclass(frozen=True)
class Run:
    """One run of a command. `how` names what differs from a full run, such as quick legs."""

    at: str
    commit: str
    machine: Machine
    how: str = ""

    @property
    def day(self) -> str:
        return self.at[:10]

    @property
    def file_name(self) -> str:
        return f"{self.day}-{self.commit.replace(' ', '-')}-{self.machine.slug}.jsonl"


@dataclass(frozen=True)
class Measured:
    """One figure of `make bench`."""

    run: Run
    bench: str
    figure: Figure


@dataclass(frozen=True)
class Compared:
    """One figure of `make bench-peer`."""

    run: Run
    row: ReportRow


Result = Measured | Compared


def read_machine() -> Machine:
    """Returns this machine, with the cores that this process may use."""
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kernel = ".".join(re.findall(r"\d+", platform.release())[:2])
    cpu = found[1].strip() if found else platform.machine()
    return Machine(len(os.sched_getaffinity(0)), cpu, round(memory / (1 << 30)), kernel, platform.python_version())


def read_commit() -> str:
    """Returns the commit of this tree, and says so if a file of the product or of the benches differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", "tiered", "api", "spark", "bench/*.py", "bench/*.c"
    )
    return git("rev-parse", "HEAD")[:COMMIT_DIGITS] + (" changed" if changed else "")


def start_run(how: str = "") -> Run:
    """Returns a run of this tree on this machine that begins now."""
    return Run(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), read_commit(), read_machine(), how)


def write_results(folder: Path, run: Run, figures: Iterable[tuple[str, Figure]], rows: Iterable[ReportRow]) -> Path:
    """Appends a run with its figures to its file."""
    lines: list[dict[str, object]] = [{"kind": "run", **asdict(run)}]
    lines += [{"kind": "figure", "bench": bench, **asdict(each)} for bench, each in figures]
    lines += [{"kind": "row", **asdict(each)} for each in rows]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / run.file_name
    with path.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in lines)
    return path


def read_results(folder: Path = RESULTS) -> list[Result]:
    """Returns the results of all files, the oldest run first."""
    found: list[Result] = []
    for path in sorted(folder.glob("*.jsonl")):
        run: Run | None = None
        for line in path.read_text().splitlines():
            fields = json.loads(line)
            kind = fields.pop("kind")
            if kind == "run":
                run = Run(**{**fields, "machine": Machine(**fields["machine"])})
                continue
            assert run is not None, f"{path.name} does not begin with a run"
            if kind == "figure":
                found.append(Measured(run, fields.pop("bench"), Figure(**fields)))
            else:
                found.append(Compared(run, ReportRow(**fields)))
    return sorted(found, key=lambda each: each.run.at)


def newest_figures(results: Iterable[Result]) -> dict[tuple[str, str], Measured]:
    """Returns the last result of each figure of `make bench`, by bench and name.

    A run of a bench has all its figures, so it replaces all earlier ones, those with other names too. Results that an
    old page names are not whole.
    """
    found: dict[tuple[str, str], Measured] = {}
    for each in results:
        if not isinstance(each, Measured):
            continue
        if each.run.commit != NOT_RECORDED:
            found = {key: old for key, old in found.items() if key[0] != each.bench or old.run == each.run}
        found[each.bench, each.figure.name] = each
    return found


def newest_rows(results: Iterable[Result]) -> dict[tuple[str, str, int], Compared]:
    """Returns the last result of each figure of `make bench-peer`, by workload, metric and processes."""
    return {
        (each.row.workload, each.row.metric, each.row.processes): each for each in results if isinstance(each, Compared)
    }
