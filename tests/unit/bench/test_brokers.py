"""Tests of comparisons with Kafka: legs of several numbers of processes are in turn with those of Kafka."""

from __future__ import annotations

import argparse
import os

import pytest

from bench.peer.__main__ import compare, parse_counts
from bench.peer.brokers import TieredBroker
from bench.peer.machine import children_of, private_and_shared
from bench.peer.workload import Figures, Leg, Workload, rate


def run_nothing(leg: Leg) -> Figures:
    raise AssertionError(leg)


WORKLOAD = Workload("closed", "a closed loop", (rate("requests/s", 1.3),), run_nothing)


def test_each_number_of_processes_is_compared_with_the_same_legs_of_kafka() -> None:
    order = []

    def run(_: Workload, side: str, processes: int) -> Figures:
        order.append((side, processes))
        figure = 100.0 * processes if side == "ours" else 50.0
        return {"rate": figure, "foreign": 0.0, "private_mb": figure, "shared_mb": 10.0}

    rows = compare(run, WORKLOAD, 2, (1, 2))
    assert order == [
        ("ours", 1), ("ours", 2), ("kafka", 1), ("kafka", 1), ("ours", 1), ("ours", 2),
    ]  # fmt: skip
    assert [(each.processes, each.metric, each.ours, each.ratio, each.met) for each in rows] == [
        (1, "rate", 100.0, 2.0, True), (1, "private_mb", 100.0, 2.0, None), (1, "shared_mb", 10.0, 1.0, None),
        (2, "rate", 200.0, 4.0, True), (2, "private_mb", 200.0, 4.0, None), (2, "shared_mb", 10.0, 1.0, None),
    ]  # fmt: skip


def test_one_process_has_the_figures_of_its_workload_alone() -> None:
    rows = compare(lambda *_: {"rate": 1.0, "foreign": 0.0}, WORKLOAD, 1)
    assert [each.metric for each in rows] == ["rate"]


@pytest.mark.parametrize("text", ["0", "1,-2", "two", ""])
def test_number_of_processes_is_at_least_one(text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--processes", type=parse_counts)
    assert parser.parse_args(["--processes", "1,2,4"]).processes == (1, 2, 4)
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args(["--processes", text])


def test_machine_of_processes_is_a_broker_with_that_setting() -> None:
    assert TieredBroker.of_processes(1) is TieredBroker
    kind = TieredBroker.of_processes(4)
    assert (kind.processes, kind.name, TieredBroker.processes) == (4, "ours", 1)
    assert issubclass(kind, TieredBroker)


def test_memory_of_a_process_is_its_own_or_shared() -> None:
    private, shared = private_and_shared(os.getpid())
    assert private > 1_000_000 and shared > 0
    assert os.getpid() in children_of(os.getppid())
