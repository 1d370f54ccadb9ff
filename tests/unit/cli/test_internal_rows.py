"""Tests of rows of internal topics: they are folded, unless a user requests them or a program reads."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from tiered_api.cli.cluster.moves import print_moves
from tiered_api.cli.internal_rows import print_folded
from tiered_api.cli.output import Row

ROWS: list[Row] = [*({"topic": "__consumer_offsets", "bytes": n} for n in range(50)), {"topic": "t", "bytes": 7}]


def into(row: Row) -> str:
    return str(row["topic"]) if row["topic"].startswith("__") else ""


def test_rows_of_an_internal_topic_are_one_line_behind_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    print_folded(ROWS, "text", into, internal=False)
    assert capfd.readouterr().out == "TOPIC  BYTES\nt          7\n50 of __consumer_offsets (-i shows them)\n"
    print_folded(ROWS[:50], "text", into, internal=False)
    assert capfd.readouterr().out == "50 of __consumer_offsets (-i shows them)\n"


def test_all_rows_are_there_on_request_and_for_programs(capfd: pytest.CaptureFixture[str]) -> None:
    print_folded(ROWS, "text", into, internal=True)
    assert len(capfd.readouterr().out.splitlines()) == 1 + 51
    print_folded(ROWS, "json", into, internal=False)
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == ROWS


def test_moves_show_refused_and_named_partitions(capfd: pytest.CaptureFixture[str]) -> None:
    names = {"__consumer_offsets/0": "OK", "__consumer_offsets/1": "NOT_CONTROLLER", "t/0": "OK"}
    rows: list[Row] = [{"partition": name, "replicas": [1], "status": status} for name, status in names.items()]

    def first_words(**given: bool) -> list[str]:
        print_moves(rows, Namespace(format="text", **given))
        return [line.split(" ")[0] for line in capfd.readouterr().out.splitlines()[1:]]

    assert first_words(internal=False) == ["__consumer_offsets/1", "t/0", "1"], "rebalance, decommission"
    assert first_words() == list(names), "reassign"
