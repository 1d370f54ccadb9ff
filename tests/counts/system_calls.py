"""System calls of requests, as strace lists them. Those for memory do not count: they depend on free memory."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from tests.counts.meter import COUNTED, MARKS

MEMORY = {"brk", "futex", "madvise", "mmap", "mprotect", "mremap", "munmap"}
_MARK = re.compile(rf'"{MARKS}/([^/"]+)/(new|begin|end)"')
_CALL = re.compile(r"(?:\[pid +)?(\d+)\]? +(\w+)\(")


def why_not() -> str:
    """Returns why this machine cannot count system calls; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not here"
    done = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True, timeout=60)
    return f"strace may not trace: {done.stderr.strip()}" if done.returncode else ""


def parse_trace(lines: Iterable[str]) -> dict[str, list[Counter[str]]]:
    """Returns the system calls between the marks of each name, by their names, one counter for each meter. Calls of
    other threads than the one with the marks do not count."""
    found: dict[str, list[Counter[str]]] = defaultdict(list)
    inside, marker = "", ""
    for line in lines:
        called = _CALL.match(line)
        if called is None:  # a signal, or the rest of an unfinished call
            continue
        thread, call = called.groups()
        marked = _MARK.search(line)
        if marked is None:
            if inside and thread == marker and call not in MEMORY:
                found[inside][-1][call] += 1
            continue
        name, what = marked.groups()
        marker, inside = thread, name if what == "begin" else ""
        if what == "new":
            found[name].append(Counter())
    return found


def tracer(trace: Path) -> tuple[str, ...]:
    """Returns the command before that of a program whose system calls go into a file."""
    return "strace", "-f", "-qq", "-s", "200", "-o", str(trace), "-e", "trace=%file,%desc,%network,%process"


def count(lines: Iterable[str]) -> dict[str, float]:
    """Returns the system calls of each name: the median of its last meters, those before warm up."""
    return {name: median(each.total() for each in meters[-COUNTED:]) for name, meters in parse_trace(lines).items()}
