"""Tests of views that stay open on a terminal: `tiered top` and `tiered group describe --watch`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.forked_commands import ForkedCommand
from tests.e2e.serving import COMMAND, ServeProcess, run_tiered
from tests.e2e.terminal import Terminal, run_on_terminal
from tiered_api.cli.live.top import ROUND_SECONDS

CONNECT = ("ApiVersions", "SaslHandshake", "SaslAuthenticate")
"""Requests that open a connection, once."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A broker with a group that has read a part of a topic."""
    with ServeProcess(tmp_path_factory.mktemp("live") / "data") as broker:
        for name in ("orders", "quiet"):
            broker.create_topic(name)
        broker.produce("orders", *range(100))
        read = run_tiered("topic", "consume", "orders", "-g", "billing", "-n", "30", "--brokers", broker.kafka)
        assert read.returncode == 0
        yield broker


def count_requests(broker: ServeProcess) -> int:
    """Returns how many requests of clients the broker has taken, without those that open a connection."""
    taken = re.findall(r'tiered_kafka_requests_total\{api="(\w+)"\} (\d+)', broker.ask("GET", "/metrics")[1])
    return sum(int(number) for name, number in taken if name not in CONNECT)


def test_top_shows_the_cluster_takes_keys_and_asks_seldom(broker: ServeProcess) -> None:
    before, began = count_requests(broker), time.monotonic()
    with Terminal("top", "--brokers", broker.kafka) as command:
        command.wait_for(lambda shown: "1 controller" in shown and "orders" in shown)
        command.wait_for(lambda shown: re.search(r"billing +Empty +70 +█", shown) is not None)
        command.wait_for(lambda shown: re.search(r"healthy", shown) is not None)
        broker.produce("orders", *range(500))
        command.wait_for(lambda shown: re.search(r"orders +1 +0 +600 +[\d.]+", shown) is not None)
        rounds = (time.monotonic() - began) / ROUND_SECONDS
        assert count_requests(broker) - before <= rounds + 1, "one request every two seconds, and the first one"
        command.press("s")
        command.wait_for(lambda shown: "by name" in shown)
        command.press("r")
        command.wait_for(lambda shown: "by name, reversed" in shown)
        shown = command.written.rpartition("by name, reversed")[2]
        assert shown.index("quiet") < shown.index("orders")
        command.press("q")
        assert command.end() == 0
        assert command.written.endswith("\x1b[?25h\x1b[?1049l"), "the screen and the cursor are as before"


def test_top_shows_that_a_broker_has_gone(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker, Terminal("top", "--brokers", broker.kafka) as command:
        command.wait_for(lambda shown: "1 controller" in shown)
        assert broker.stop() == 0
        command.wait_for(lambda shown: "cannot connect" in shown or "not reached" in shown or "closed" in shown)
        command.press("q")
        assert command.end() == 0


def test_top_without_a_terminal_names_the_commands_for_scripts(broker: ServeProcess) -> None:
    refused = run_tiered("top", "--brokers", broker.kafka)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("tiered: top needs a terminal") and "tiered cluster brokers" in refused.stderr


def test_top_without_the_package_names_its_install(broker: ServeProcess, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['rich'] = None\n")
    code, said = run_on_terminal("top", "--brokers", broker.kafka, env={"PYTHONPATH": str(tmp_path)}, command=COMMAND)
    assert code == 3 and "pip install '.[cli]'" in said and "\x1b" not in said


def test_top_at_a_wrong_address_is_an_error_and_no_screen() -> None:
    code, said = run_on_terminal("top", "--brokers", "127.0.0.1:1")
    assert code == 4 and said.startswith("tiered: no broker replies at 127.0.0.1:1") and "\x1b" not in said


def test_watched_group_shows_the_course_of_its_lag(broker: ServeProcess) -> None:
    with Terminal("group", "describe", "billing", "--watch", "--brokers", broker.kafka) as command:
        command.wait_for(lambda shown: re.search(r"LAG  █ \d", shown) is not None and "COORDINATOR  1" in shown)
        broker.produce("orders", *range(2_000))
        command.wait_for(lambda shown: re.search(r"LAG  \S+█ [\d,]+  grows by [\d,.]+ records/s", shown) is not None)
        command.press("\x03")
        assert command.end() == 130
        assert command.written.endswith("\x1b[?25h"), "the cursor is shown again"


@pytest.mark.parametrize("form", ["text", "json"])
def test_watched_group_in_a_pipe_is_a_row_for_each_look(broker: ServeProcess, form: str) -> None:
    words = ["group", "describe", "billing", "absent", "-w", "--format", form, "--brokers", broker.kafka]
    command = ForkedCommand(words, {"TERM": "xterm"})
    try:
        rows = [command.stdout.readline().decode() for _ in range(3)]
    finally:
        command.close()
    if form == "json":
        assert all(json.loads(row)["group"] == "billing" and "total_lag" in json.loads(row) for row in rows)
    else:
        assert rows[0] == "TIME  GROUP  STATE  MEMBERS  LAG\n"
        assert all(re.fullmatch(r"\S+\+00:00  billing  Empty  0  \d+\n", row) for row in rows[1:]), rows
