"""Tests of the counts of work: growth is named, and the meters see one call more."""

from __future__ import annotations

import os
import sys

from tests.counts.__main__ import changes
from tests.counts.meter import MARKS, BytecodeMeter, CallMeter, Meter
from tests.counts.system_calls import parse_trace


def test_count_that_grew_by_more_than_two_percent_is_named() -> None:
    kept = {"Heartbeat": {"calls": 100.0, "bytecodes": 1000.0, "blocks": 0.0}}
    assert not changes({"Heartbeat": {"calls": 102, "bytecodes": 900, "blocks": 0}}, kept)
    assert changes({"Heartbeat": {"calls": 103, "bytecodes": 1000, "blocks": 1}}, kept) == [
        "Heartbeat: 103 calls, 100 kept (+3.0%)",
        "Heartbeat: 1 blocks, 0 kept (from none)",
    ]


def test_count_that_fell_is_named_apart() -> None:
    kept = {"start": {"modules": 500.0, "calls": 1000.0}}
    found = {"start": {"modules": 450.0, "calls": 1030.0}}
    assert changes(found, kept, fell=True) == ["start: 450 modules, 500 kept (-10.0%)"]
    assert changes(found, kept) == ["start: 1,030 calls, 1,000 kept (+3.0%)"]


def test_count_that_nobody_kept_is_named() -> None:
    assert changes({"start": {"modules": 1.0}}, {}) == ["start: 1 modules, none kept"]


def _count(meter: Meter, times: int) -> int:
    def work(number: int) -> int:
        return number + 1

    meter.begin()
    for number in range(times):
        work(number)
    meter.end()
    return meter.total


def test_meters_count_each_call_and_bytecode_once() -> None:
    within = (os.path.dirname(__file__),)
    before = sys.gettrace(), sys.getprofile()
    calls = [_count(CallMeter(within), times) for times in (1, 2, 2, 3)]
    bytecodes = [_count(BytecodeMeter(), times) for times in (1, 2, 2, 3)]
    assert [count - calls[0] for count in calls] == [0, 1, 1, 2]
    assert bytecodes[1] == bytecodes[2]
    assert bytecodes[3] - bytecodes[2] == bytecodes[2] - bytecodes[0] > 0
    assert (sys.gettrace(), sys.getprofile()) == before


def test_system_calls_between_marks_of_one_thread_are_counted() -> None:
    trace = f"""
7 access("{MARKS}/Heartbeat/new", F_OK) = -1 ENOENT (No such file or directory)
7 recvfrom(9, "before", 65536, 0, NULL, NULL) = 6
7 access("{MARKS}/Heartbeat/begin", F_OK) = -1 ENOENT (No such file or directory)
7 epoll_wait(5, [], 3, 0) = 0
8 fsync(3 <unfinished ...>
7 mmap(NULL, 262144, PROT_READ, MAP_PRIVATE, -1, 0) = 0x7f
7 sendto(9, "reply", 5, 0, NULL, 0) = 5
8 <... fsync resumed>) = 0
7 access("{MARKS}/Heartbeat/end", F_OK) = -1 ENOENT (No such file or directory)
7 close(9) = 0
"""
    assert parse_trace(trace.splitlines()) == {"Heartbeat": [{"epoll_wait": 1, "sendto": 1}]}
