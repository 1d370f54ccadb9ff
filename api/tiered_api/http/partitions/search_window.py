"""The offsets that a search from the end reads next, and the bytes of the read.

Pure. Offsets do not tell how many bytes are between them. So the width of a stretch is a guess from the stretch before,
and a stretch that one read did not cover is read again: with more bytes, or from a later offset.
"""

from __future__ import annotations

GROWTH_MAX = 8
"""Most times that a stretch is wider than the one before."""
FIRST_BYTES = 1 << 18
"""Bytes of the first read: nobody knows yet how long records are."""
SLACK_BYTES = 1 << 16
"""Bytes beyond the estimate: a read ends with a whole batch."""


class SearchWindow:
    """The stretch from `start` to `end`, `end` excluded, which `read_bytes` may cover. It moves towards the log start,
    where it is empty."""

    def __init__(self, log_start: int, end: int, width: int, max_bytes: int) -> None:
        self.end = max(end, log_start)
        self.start = max(self.end - width, log_start)
        self.read_bytes = min(FIRST_BYTES, max_bytes)
        self._log_start = log_start
        self._max_bytes = max_bytes

    @property
    def is_empty(self) -> bool:
        """True if nothing is left to look at."""
        return self.end <= self._log_start

    def retry(self, covered: int, size: int) -> None:
        """Changes the read: one of `size` bytes from `start` on ended at `covered`, before the end. It takes more
        bytes, up to the limit; then it begins later, and half a read is the aim."""
        width = covered - self.start
        if self.read_bytes < self._max_bytes:
            wanted = (self.end - self.start) * size // width + SLACK_BYTES
            self.read_bytes = min(self._max_bytes, max(wanted, 2 * self.read_bytes))
        else:
            self.start = max(covered, self.end - max(width * self._max_bytes // (2 * size), 1))

    def move(self, size: int) -> None:
        """Goes on before `start`. The stretch that is done had `size` bytes; the next one may have three quarters of a
        whole read."""
        width = self.end - self.start
        fitting = width * self._max_bytes * 3 // (4 * max(size, 1))
        wider = min(max(fitting, 1), GROWTH_MAX * width)
        self.end = self.start
        self.start = max(self.end - wider, self._log_start)
        self.read_bytes = min(self._max_bytes, 5 * wider * size // (4 * max(width, 1)) + SLACK_BYTES)
