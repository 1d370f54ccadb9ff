"""Tests of the progress of each long command on a terminal, and of the same commands in pipes, which draw nothing.

`LONG` has a row for each command with the option `--no-progress`; the test that compares both fails without a row.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.serving import COMMAND, ServeProcess, run_tiered
from tests.e2e.terminal import run_on_terminal
from tests.e2e.test_up import start_up
from tests.seeds import chosen
from tests.unit.cli.test_profiles import has_option, list_parsers
from tiered_api.cli.arguments import parser

pytest.importorskip("duckdb")

LAKE = "--store file://{bucket} --warehouse {warehouse}"
LONG = {
    "load": (f"--engine native --topic orders {LAKE}", "load orders", "0 B left"),
    "verify": (f"--topic orders {LAKE}", "verify orders", "0 tasks left"),
    "sql": ("--warehouse {warehouse} --format csv SELECT\xa0count(*)\xa0FROM\xa0orders", "sql", ""),
    "table rebuild": (f"orders {LAKE}", "rebuild orders", "left"),  # before rows of the table are erased
    "table erase": (f"orders --where offset\xa0=\xa01 --reason test {LAKE}", "erase from orders", "0 B left"),
    "table change": (f"orders x --rename-to y{{run}} {LAKE}", "change orders", "files left"),
    "table vacuum": ("orders --warehouse {warehouse}", "vacuum orders", "0 files left"),
    "table replay-dead": (f"orders {LAKE}", "replay orders", ""),
    "cold cat": ("--store file://{bucket} --topic orders", "read orders", "offsets left"),
    "cold verify": ("--store file://{bucket}", "verify the bucket", "partitions left"),
    "encryption list": ("--store file://{bucket}", "look at all objects", "objects so far"),
    "encryption remove": ("{keys} second --store file://{bucket}", "look at all objects", "objects so far"),
    "encryption rewrite": ("--store file://{copy}?keys={keys}", "encrypt anew", "objects so far"),
    "cluster reassign": ("t/0=1,2 --throttle {rate} --brokers {brokers}", "move partitions", ""),
    "cluster rebalance": ("--execute --throttle {rate} --brokers {brokers}", "move partitions", ""),
    "cluster decommission": ("3 --brokers {brokers}", "empty broker 3", ""),
    "cluster rotate-secret": ("--brokers {brokers}", "rotate the secret", ""),
    "cluster drain": ("--brokers {brokers}", "drain into the bucket", ""),
    "debug bundle": ("--brokers {brokers} --out {demo}{run}.zip", "debug bundle", "files so far"),
    "demo": ("--records 200 --dir {demo}{run}", "", "records left"),
}
"""By command: its arguments, and what its line says. A no-break space stands for a space inside of an argument."""
RATE = "100000000"
CLUSTER = (
    "debug bundle", "cluster reassign", "cluster rebalance", "cluster decommission", "cluster rotate-secret",
    "cluster drain",
)  # fmt: skip
SLOW = {"cluster drain", "cluster reassign", "demo", "load", "table change"}
"""Commands whose line comes as that of the others, after many seconds of work."""
FAILING = {"demo": 3}
"""Exit codes here: there is no Java."""


@dataclass(frozen=True)
class Places:
    """A bucket with a topic, a copy of it, a warehouse with its tables, and a key file."""

    directory: Path
    brokers: str = ""

    def fill(self, words: str, run: int) -> list[str]:
        """Returns arguments for one run of a command."""
        where = {
            "bucket": self.directory / "data" / "bucket",
            "copy": self.directory / "copy",
            "warehouse": self.directory / "tables",
        }
        filled = words.format(
            **where,
            keys=self.directory / "keys",
            demo=self.directory / "demo",
            brokers=self.brokers,
            run=run,
            rate=RATE,
        )
        return [word.replace("\xa0", " ") for word in filled.split(" ")]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """A bucket that a broker has left, with a raw and a typed table of its topic."""
    made = Places(tmp_path_factory.mktemp("progress"))
    with ServeProcess(made.directory / "data", "-c", "tiered.upload.max.lag.ms=200") as broker:
        broker.create_topic("orders")
        broker.produce("orders", *({"x": number} for number in range(500)))
        broker.wait_for_offset("orders", "cold_end_offset", 500)
    shutil.copytree(made.directory / "data" / "bucket", made.directory / "copy")
    for words in (
        f"load --values json --engine native --topic orders {LAKE}",
        "encryption add {keys} --active --id one",
    ):
        done = run_tiered(*made.fill(words, 0))
        assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Three brokers, and a topic on two of them."""
    directory = tmp_path_factory.mktemp("moves")
    with start_up(directory / "data", 3) as up:
        made = Places(directory, ",".join(up.kafka))
        done = run_tiered("topic", "create", "t", "-p", "3", "-r", "2", "--brokers", made.brokers)
        assert done.returncode == 0, done.stderr
        yield made


def test_every_long_command_has_a_row() -> None:
    assert {name for name, made in list_parsers(parser()) if has_option(made, "--no-progress")} == LONG.keys()


@pytest.mark.parametrize("name", chosen(LONG, LONG.keys() - SLOW))
def test_long_command_shows_what_is_left_on_a_terminal_alone(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    places: Places = request.getfixturevalue("cluster" if name in CLUSTER else "places")
    words, title, left = LONG[name]
    hidden = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)} if name == "demo" else {}

    def arguments(run: int) -> list[str]:
        if name == "cluster rebalance":
            crowd = [f"t/{number}=1,2" for number in range(3)]
            back = run_tiered("cluster", "reassign", *crowd, "--throttle", RATE, "--brokers", places.brokers)
            assert back.returncode == 0, back.stderr
        if name == "encryption remove":
            run_tiered(*places.fill("encryption add {keys} --id second", run))
        return [*name.split(), *places.fill(words, run)]

    piped = run_tiered(*arguments(1), env={"TERM": "xterm", **hidden})
    assert piped.returncode == FAILING.get(name, 0), piped.stderr
    assert "\x1b" not in piped.stdout + piped.stderr and " left 0:00" not in piped.stderr
    with open(tmp_path / "output", "wb") as output:
        target = output.fileno() if name == "cold cat" else None
        code, shown = run_on_terminal(*arguments(2), env=hidden, output=target)
    assert code == FAILING.get(name, 0), shown
    assert title in shown and left in shown and "\x1b[?25l" in shown, shown


def test_cold_cat_to_a_terminal_is_its_own_progress(places: Places) -> None:
    code, shown = run_on_terminal("cold", "cat", *places.fill(LONG["cold cat"][0], 1))
    assert code == 0 and "\x1b" not in shown and shown.count("\r\n") == 500


def test_no_progress_leaves_the_terminal_without_a_line(places: Places) -> None:
    code, shown = run_on_terminal("verify", *places.fill(LONG["verify"][0], 1), "--no-progress")
    assert code == 0 and "\x1b" not in shown and "every record is there once" in shown


def test_progress_without_the_package_names_its_install(places: Places, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['rich'] = None\n")
    code, shown = run_on_terminal(
        "verify", *places.fill(LONG["verify"][0], 1), env={"PYTHONPATH": str(tmp_path)}, command=COMMAND
    )
    assert code == 0 and "\x1b" not in shown and "every record is there once" in shown
    assert shown.count("pip install '.[cli]'") == 1 and "--no-progress" in shown


@pytest.mark.also("tests/e2e/test_cli_progress.py::test_long_command_shows_what_is_left_on_a_terminal_alone")
@pytest.mark.java
@pytest.mark.slow
def test_words_of_spark_do_not_cut_through_the_line(places: Places) -> None:
    query = places.fill("--warehouse {warehouse} --format csv SELECT\xa0count(*)\xa0FROM\xa0orders", 1)
    code, shown = run_on_terminal("sql", "--engine", "spark", *query)
    assert code == 0 and shown.endswith(("500\r\n", "499\r\n")), shown
    seen = [line.rpartition("\x1b[2K")[2] for line in shown.split("\r\n")]  # each ends the line that was drawn
    spoken = [line.partition("WARN")[0] for line in seen if "WARN" in line]
    assert spoken and not [line for line in spoken if "sql" in line], "a line of its own for each"
    assert "[Stage" not in shown
