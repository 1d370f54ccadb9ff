"""Tests of pictures on a terminal, and of the same commands in pipes, which draw nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.serving import COMMAND, INTERNAL_CONFIGS, ServeProcess, run_tiered
from tests.e2e.terminal import run_on_terminal

SETTINGS = ("tiered.upload.max.lag.ms=1000", "log.retention.check.interval.ms=300")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A broker with a topic in both tiers, and an empty one."""
    directory = tmp_path_factory.mktemp("pictures") / "data"
    settings = [word for each in SETTINGS for word in ("-c", each)]
    with ServeProcess(directory, *INTERNAL_CONFIGS, *settings) as broker:
        broker.create_topic(
            "orders", internal_segment_bytes="16384", local_retention_bytes="1", file_delete_delay_ms="0"
        )
        broker.create_topic("empty")
        for _ in range(3):
            broker.produce("orders", *({"n": number, "x": "x" * 40} for number in range(1_000)))
        broker.wait_for_offset("orders", "cold_end_offset", 3_000)
        broker.wait_for_offset("orders", "local_start_offset", 1)
        yield broker


def storage(broker: ServeProcess) -> tuple[str, ...]:
    return ("topic", "describe-storage", "orders", "empty", "--brokers", broker.kafka)


def test_storage_is_bars_on_a_terminal(broker: ServeProcess) -> None:
    code, drawn = run_on_terminal(*storage(broker), env={"NO_COLOR": "1"})
    assert code == 0
    assert "░░░" in drawn and "3,000" in drawn and "kB in the bucket" in drawn and "··· " in drawn
    assert "░░ in the bucket" in drawn.splitlines()[-1] and "/" not in drawn
    coloured = run_on_terminal(*storage(broker))[1]
    assert "\x1b[33m░░░" in coloured


def test_storage_in_pipes_is_the_columns_of_the_terminal(broker: ServeProcess) -> None:
    piped = run_tiered(*storage(broker), env={"TERM": "xterm"})
    assert piped.returncode == 0 and piped.stderr == ""
    head, *rows = piped.stdout.splitlines()
    assert head.split() == [
        *("TOPIC", "PARTITION", "LOG-START-OFFSET", "LOCAL-START-OFFSET", "LAST-TIERED-OFFSET", "HIGH-WATERMARK"),
        *("LOCAL-BYTES", "REMOTE-BYTES", "GROUPS"),
    ]
    assert [row.split()[:2] for row in rows] == [["orders", "0"], ["empty", "0"]]
    code, plain = run_on_terminal(*storage(broker), "--no-picture")
    assert (code, plain.replace("\r\n", "\n")) == (0, piped.stdout)


def test_storage_without_the_package_is_columns_and_its_install(broker: ServeProcess, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['rich'] = None\n")
    code, plain = run_on_terminal(*storage(broker), env={"PYTHONPATH": str(tmp_path)}, command=COMMAND)
    assert code == 0 and plain.count("pip install '.[cli]'") == 1 and "TOPIC " in plain and "░" not in plain


def test_positions_of_groups_and_what_is_loaded_are_shown(broker: ServeProcess, tmp_path: Path) -> None:
    assert (
        run_tiered("topic", "consume", "orders", "-g", "billing", "-n", "900", "--brokers", broker.kafka).returncode
        == 0
    )
    store, tables = broker.line.partition(" store=")[2].split()[0], tmp_path / "tables"
    load = ("load", "--store", store, "--topic", "orders", "--warehouse", str(tables), "--engine", "native")
    assert run_tiered(*load).returncode == 0
    [orders, empty] = [
        json.loads(line)
        for line in run_tiered(*storage(broker), "--warehouse", str(tables), "--format", "json").stdout.splitlines()
    ]
    assert orders["groups"] == {"billing": 900} and orders["loaded_offset"] >= 3_000
    assert empty["groups"] == {} and empty["loaded_offset"] is None
    code, drawn = run_on_terminal(*storage(broker), "--warehouse", str(tables), env={"NO_COLOR": "1"})
    assert code == 0 and "═▲═" in drawn and "billing 900" in drawn
    assert "══ loaded into the Delta table" in drawn.splitlines()[-1] and "▲▲ position" in drawn.splitlines()[-1]
    piped = run_tiered(*storage(broker)).stdout.splitlines()
    assert piped[1].endswith("billing:900") and piped[2].endswith("-")
    wrong = run_tiered(*storage(broker), "--warehouse", str(tmp_path / "absent"))
    assert wrong.returncode != 0 and "there is no warehouse" in wrong.stderr


def test_bars_of_open_transactions_are_drawn(broker: ServeProcess) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    broker.create_topic("open")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "transactional.id": "t"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("open", b"x")
    assert producer.flush(60) == 0
    drawn = run_on_terminal("topic", "describe-storage", "open", "--brokers", broker.kafka)[1]
    assert "//// " in drawn.replace("\x1b[0m", "") and "beyond the last stable offset" in drawn
    producer.abort_transaction()
