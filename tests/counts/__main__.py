"""`python -m tests.counts [--check | --keep]`: the counts of work beside the kept ones, in `tests/counts/kept.json`.

With `--check` it fails if a count is more than 2 % above the kept one. With `--keep` it writes all counts of this
Python: the commit that raises one says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.counts import system_calls
from tiered.records import native

KEPT = Path(__file__).with_name("kept.json")
GROWTH = 0.02
"""A count may grow by this part."""
CHILD_SECONDS = 600.0
VERSION = f"Python {sys.version_info.major}.{sys.version_info.minor}"

Counts = Mapping[str, Mapping[str, float]]
"""Counts of each kind of work by what is counted: the calls and bytecodes of a Heartbeat."""


def begin(module: str, *arguments: str, tracer: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """Starts a program that counts. Sets have the same order in each run of it."""
    chosen = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "TIERED_"))}
    return subprocess.Popen(
        [*tracer, sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**chosen, "PYTHONHASHSEED": "0"},
    )  # fmt: skip


def end(child: subprocess.Popen[bytes]) -> Any:
    """Returns what a program printed; a traced one prints nothing."""
    out, errors = child.communicate(timeout=CHILD_SECONDS)
    if child.returncode:
        sys.exit(f"{child.args!r} ended with {child.returncode}:\n{errors.decode()}")
    return json.loads(out or b"{}")


def measure() -> tuple[Counts, str]:
    """Returns all counts, and why system calls are not among them (empty if they are)."""
    why = system_calls.why_not()
    with tempfile.TemporaryDirectory(prefix="tiered-counts-") as directory:
        trace = Path(directory) / "trace"
        requests, idle = begin("tests.counts.requests"), begin("tests.counts.idle")
        start = begin("tests.counts.start", f"{directory}/data")
        found: dict[str, dict[str, float]] = {"start": end(start)}
        traced = None if why else begin("tests.counts.requests", "--mark", tracer=system_calls.tracer(trace))
        found |= end(requests)
        if traced is not None:
            end(traced)
            with trace.open() as lines:
                for name, count in system_calls.count(lines).items():
                    found[name]["system calls"] = count
        found |= end(idle)
    return found, why


def changes(found: Counts, kept: Counts, *, fell: bool = False) -> list[str]:
    """Returns a line for each count that grew by more than allowed, or for each that fell by as much."""
    lines = []
    for name, counts in found.items():
        for what, count in counts.items():
            before = kept.get(name, {}).get(what)
            if before is None:
                if not fell:
                    lines.append(f"{name}: {count:,.0f} {what}, none kept")
            elif (count < before * (1 - GROWTH)) if fell else (count > before * (1 + GROWTH)):
                part = f"{count / before - 1:+.1%}" if before else "from none"
                lines.append(f"{name}: {count:,.0f} {what}, {before:,.0f} kept ({part})")
    return lines


def read_kept() -> dict[str, Counts]:
    """Returns the kept counts by version of Python."""
    return dict(json.loads(KEPT.read_text())) if KEPT.exists() else {}


def write_kept(found: Counts) -> None:
    """Keeps these counts for this Python, a line for each kind of work. A count that was not taken stays as it was."""
    kept = read_kept()
    old = kept.get(VERSION, {})
    kept[VERSION] = {name: {**old.get(name, {}), **counts} for name, counts in found.items()}
    parts = []
    for version, counts in sorted(kept.items()):
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(each)}" for name, each in counts.items())
        parts.append(f"  {json.dumps(version)}: {{\n{rows}\n  }}")
    KEPT.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main() -> None:
    options = set(sys.argv[1:])
    kept = read_kept().get(VERSION, {})
    if "--check" in options and not kept:
        print(f"No counts are kept of {VERSION}: nothing to check.")
        return
    if not native.NATIVE:
        sys.exit("The C extension is not built: plain Python has other counts. `make check` builds it.")
    found, why = measure()
    if why:
        print(f"System calls are not counted: {why}.")
    if "--keep" in options:
        write_kept(found)
        return
    grown = changes(found, kept)
    if "--check" in options:
        for line in changes(found, kept, fell=True):
            print(f"{line}: `python -m tests.counts --keep` keeps it")
        keep = "If each has a reason: `python -m tests.counts --keep`, and the commit says the reason."
        sys.exit("\n".join(["More work than before:", *grown, keep]) if grown else 0)
    for name, counts in found.items():
        before = kept.get(name, {})
        print(
            f"{name}:", ", ".join(f"{count:,.0f} {what} ({before.get(what, 0):,.0f})" for what, count in counts.items())
        )


if __name__ == "__main__":
    main()
