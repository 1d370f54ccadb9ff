"""Finishes swaps of cleaned segments that a crash has interrupted, before a log loads its segments. Keeps I26."""

from __future__ import annotations

from tiered.hot import checkpoints
from tiered.hot.segment_files import WALK_BATCHES, SegmentFiles
from tiered.hot.segments import parse_lines
from tiered.records.native import walk

CLEANED, SWAP = ".cleaned", ".swap"
PARTS = (".index", ".timeindex", ".txnindex", ".log")
"""The files of a segment in the order of their renames: the log file decides."""


def finish_swaps(files: SegmentFiles) -> None:
    """Finishes the swaps that a crash has interrupted. A second call after another crash does the rest.

    An index without a `.swap` file may be that of an old segment: it is rebuilt from the log.
    """
    names = set(files.disk.list(files.directory))
    bases = sorted(int(name[:20]) for name in names if len(name) == 24 and name.endswith(".log"))
    for name in sorted(names):
        if not name.endswith(".log" + SWAP):
            continue
        base = int(name[:20])
        end = _end_of_swap(files, base)
        for other in bases:
            if other == base or base < other < end:
                for suffix in reversed(PARTS):
                    files.remove(files.path(other, suffix))
        for suffix in PARTS:
            path = files.path(base, suffix)
            if files.disk.exists(path + SWAP):
                files.disk.rename(path + SWAP, path)
            else:
                files.remove(path)


def _end_of_swap(files: SegmentFiles, base: int) -> int:
    """Returns the end of the offsets that a cleaned segment stands for: that of its line in the checkpoint, or of its
    last batch, if that is larger.

    A flush may have written the lines of the old segments again, and one of them may be as large as the cleaned one. If
    batches were removed at the end of the cleaned one, its last batch says too little, and an old segment stays
    uncleaned.
    """
    path = files.path(base, ".log") + SWAP
    line = parse_lines(files.read(f"{files.directory}/{checkpoints.SEGMENTS_FILE}") or b"").get(base)
    end = line.next_offset if line is not None and line.size == files.size(path) else base
    file, at = files.disk.open(path, write=False), 0
    try:
        data = file.map() if file.size() else memoryview(b"")
        while (found := walk(data, at, check_crc=False, max_batches=WALK_BATCHES)).batches:
            at, end = found.end, max(end, found.batches[-1].last_offset + 1)
    finally:
        file.close()
    return end
