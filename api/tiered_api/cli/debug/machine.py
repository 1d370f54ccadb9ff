"""The files of a broker's machine: the ends of its logs, and names and sizes in its data directory. Opens no file that
may have records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiered.errors import Code, Refused
from tiered_api.cli.debug.redaction import hide_text

LOG_BYTES = 1 << 20
"""Bytes of the end of each log."""
LOGS_MAX = 20
LISTED_MAX = 20_000
"""Most files of a data directory that are listed."""
LOG_SUFFIXES = (".log", ".out", ".err")
META_FILE = Path("log") / "meta.properties"
META_SHOWN = ("version", "cluster.id", "node.id")
"""Brokers prove their directories to each other by the other one."""


def find_logs(directory: Path) -> list[Path]:
    """Returns the logs of a process directly in a data directory. Segments, which end so too, are in folders of it."""
    try:
        found = sorted(each for each in directory.iterdir() if each.suffix in LOG_SUFFIXES and each.is_file())
    except OSError as error:
        raise Refused(Code.INVALID_REQUEST, f"--data-dir {directory}: {error.strerror}") from None
    return found[:LOGS_MAX]


def read_log_end(path: Path, most: int = LOG_BYTES) -> bytes:
    """Returns the last whole lines of a log, at most `most` bytes, without secrets."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - most))
            data = log.read(most)
    except OSError as error:
        raise Refused(Code.INVALID_REQUEST, f"log {path}: {error.strerror}") from None
    if size > most:
        data = data.partition(b"\n")[2]
    return hide_text(data.decode(errors="replace")).encode()


def describe_directory(directory: Path) -> dict[str, Any]:
    """Returns names, sizes and times of the files in a data directory, and whose it is."""
    space = os.statvfs(directory)
    rows, more = list[dict[str, Any]](), 0
    for path, size, changed_ms in _walk(directory):
        if len(rows) < LISTED_MAX:
            rows.append({"file": path, "bytes": size, "changed_ms": changed_ms})
        else:
            more += 1
    return {
        "free_bytes": space.f_bavail * space.f_frsize,
        "total_bytes": space.f_blocks * space.f_frsize,
        "owner": _read_owner(directory / META_FILE),
        "files": rows,
        "files_left_out": more,
    }


def _walk(directory: Path) -> Iterator[tuple[str, int, int]]:
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue  # deleted meanwhile
            yield str(path.relative_to(directory)), found.st_size, found.st_mtime_ns // 1_000_000


def _read_owner(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name: value for name, _, value in pairs if name in META_SHOWN}
