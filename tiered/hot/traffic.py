"""Counts of bytes and records that clients wrote to a log and read from it since it was opened, for the metrics."""

from __future__ import annotations


class Traffic:
    """Plain counters. Appends and replies add to them, once for each request and partition."""

    __slots__ = ("bytes_in", "bytes_out", "records_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.records_in = 0
        self.bytes_out = 0
