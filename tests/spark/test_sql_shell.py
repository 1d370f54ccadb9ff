"""Tests of the shell, of the command, and of notebooks: each as a user has it."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.query import notebook
from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.query.output import QueryResult, render, render_lines
from pyspark_tiered.query.shell import Shell, complete
from tests.sources import ROOT
from tests.spark import filling
from tiered.errors import Refused
from tiered.ids import PartitionId
from tiered_api.cli.main import main

TOPIC = filling.topic_id(1)
NOTEBOOK = ROOT / "docs" / "how-to" / "tables.ipynb"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns a warehouse with the table `flights` of 2,500 rows."""
    root = tmp_path_factory.mktemp("shell")
    store = f"file://{root}/store"
    filling.create_topic(store, "flights", TOPIC, 1)
    rows = [
        (filling.BASE_MS + i, b"k", b'{"carrier": "%s", "delay": %d}' % (b"AU"[i % 2 :][:1], i), ())
        for i in range(2500)
    ]
    filling.upload(store, "flights", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    load(store, "flights", str(root / "tables"), engine=NativeEngine())
    return str(root / "tables")


@pytest.fixture
def session(warehouse: str) -> Iterator[SqlSession]:
    """Yields a session over it."""
    with SqlSession(warehouse) as opened:
        yield opened


def test_command_prints_text_json_and_csv(warehouse: str, capfd: pytest.CaptureFixture[str]) -> None:
    query = "SELECT value.carrier, count(*) AS flights, 1.50 AS x FROM flights GROUP BY ALL ORDER BY 1"
    printed = {}
    for form in ("text", "json", "csv"):
        assert main(["sql", query, "--warehouse", warehouse, "--format", form]) == 0
        printed[form] = capfd.readouterr().out.splitlines()
    assert printed["text"] == [
        "carrier  flights  x",
        "-------  -------  ----",
        "A        1250     1.50",
        "U        1250     1.50",
    ]
    assert json.loads(printed["json"][0]) == {"carrier": "A", "flights": 1250, "x": 1.5}
    assert printed["csv"] == ["carrier,flights,x", "A,1250,1.50", "U,1250,1.50"]


def test_script_runs_until_its_first_error(session: SqlSession, capsys: pytest.CaptureFixture[str]) -> None:
    script = "\\d\n\\d flights\n\\f csv\nSELECT count(*)\n AS n -- ;\n FROM flights;\nSELECT 1 AS a"
    Shell(session).run_script(StringIO(script))
    columns = ["partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]
    assert capsys.readouterr().out.splitlines() == ["flights", *columns, "n", "2500", "a", "1"]
    with pytest.raises(Refused, match="there is no table nothing"):
        Shell(session).run_script(StringIO("SELECT * FROM nothing;\nSELECT 1;"))
    with pytest.raises(Refused, match="unknown command"):
        Shell(session).run_script(StringIO("\\x\n"))
    with pytest.raises(Refused, match="at most"):
        Shell(session).run_script(StringIO("SELECT '" + "x" * (1 << 21)))


def test_completion_knows_tables_and_columns() -> None:
    columns = {"flights": ["offset", "value"], "orders.eu": ["city"]}
    tables = list(columns)
    assert complete("fl", "SELECT * FROM fl", tables, columns.__getitem__) == ["flights"]
    assert complete("or", "SELECT * FROM or", tables, columns.__getitem__)[0] == '"orders.eu"'
    assert complete("off", "SELECT off FROM flights", tables, columns.__getitem__) == ["offset"]
    assert complete("ci", 'SELECT ci FROM "orders.eu"', tables, columns.__getitem__) == ["city"]
    assert complete("WHE", "SELECT * FROM flights WHE", tables, columns.__getitem__) == ["WHERE"]
    assert complete("zz", "SELECT zz", tables, columns.__getitem__) == []


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, warehouse: str, home: Path) -> None:
        self._end, inside = pty.openpty()
        self._printed = ""
        environment = {**os.environ, "HOME": str(home), "TERM": "dumb", "PAGER": "cat"}
        command = [sys.executable, "-m", "tiered_api.cli.main", "sql", "--warehouse", warehouse]
        self.process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True,
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(inside)

    def send(self, text: str) -> None:
        os.write(self._end, text.encode())

    def read_until(self, what: str) -> str:
        """Returns what was printed up to these words; the rest is for the next call."""
        while what not in self._printed:
            assert select.select([self._end], [], [], 20)[0], self._printed
            self._printed += os.read(self._end, 4096).decode()
        before, _, self._printed = self._printed.partition(what)
        return before

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(30)
        os.close(self._end)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_shell_in_a_terminal_completes_cancels_and_remembers(warehouse: str, tmp_path: Path) -> None:
    with Terminal(warehouse, tmp_path) as terminal:
        terminal.read_until("tiered> ")
        terminal.send("SELECT count(*)\r")
        terminal.read_until("...> ")
        terminal.send("FROM fli\t;\r")
        assert "2500" in terminal.read_until("rows, ")
        terminal.read_until("tiered> ")
        terminal.send("SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b;\r")
        terminal.read_until("b;")
        terminal.read_until("\n")
        terminal.send("\x03")  # before the query or in it: it would run for hours
        terminal.read_until("tiered> ")
        for _ in range(10):  # at any moment of its start
            terminal.send("SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b;\r")
            terminal.read_until("b;")
            terminal.read_until("\n")
            terminal.send("\x03")
            terminal.read_until("tiered> ")
        terminal.send("SELECT * FROM nothing;\r")
        terminal.read_until("there is no table nothing")
        terminal.send("\\q\r")
        assert terminal.process.wait(30) == 0
    assert "FROM flights;" in (tmp_path / ".cache/tiered/sql_history").read_text()


def test_long_output_is_streamed(session: SqlSession, capsys: pytest.CaptureFixture[str]) -> None:
    Shell(session, "csv").run_script(StringIO("SELECT range FROM range(20000);"))
    assert len(capsys.readouterr().out.splitlines()) == 20_001


def test_cells_do_not_move_the_cursor() -> None:
    shown = render(QueryResult(("a",), (("\x1b[2J\n",), (None,), (b"\xff",), (float("nan"),))))
    assert shown.splitlines() == ["a", "---------", "\\x1b[2J\\n", "NULL", "ff", "nan"]
    assert render(QueryResult(("n", "n"), ((1, 2),)), "json") == '{"n": 1, "n_2": 2}'


def test_large_cells_are_fetched_and_kept_in_small_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT repeat('x', 1 << 20) FROM range(90)"
    monkeypatch.setattr(notebook, "BYTES_MAX", 5 << 20)
    tracemalloc.start()
    with SqlSession(str(tmp_path)) as session:
        assert sum(1 for _ in session.run(query).rows) == 90
    magic = notebook.TieredMagic()
    found = magic.run(f"--warehouse {tmp_path}", query)
    assert (len(found.rows), found.is_whole) == (5, False)
    assert magic.run("", "SELECT 1").is_whole
    magic.close()
    cells = (["x" * (1 << 20)] for _ in range(90))
    assert next(render_lines(["a"], cells)) == "a"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20, "of 90 MiB"


def test_query_without_the_extra_names_it(
    warehouse: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from tiered_api.cli.lake import sql

    monkeypatch.setattr(sql, "find_spec", lambda name: None)
    assert main(["sql", "SELECT 1", "--warehouse", warehouse]) == 3
    assert "pip install '.[sql]'" in capfd.readouterr().err


def test_notebook_runs(warehouse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interactive = import_module("IPython.core.interactiveshell").InteractiveShell
    monkeypatch.chdir(Path(warehouse).parent)
    os.symlink(warehouse, "tiered-warehouse")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    config = import_module("traitlets.config").Config()
    config.HistoryManager.enabled = False
    shell = interactive.instance(config=config)
    try:
        results: list[Any] = []
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            if cell["cell_type"] == "code":
                done = shell.run_cell("".join(cell["source"]))
                done.raise_error()
                results.append(done.result)
        assert results[1].rows == [("A", 1250, 1249.0), ("U", 1250, 1250.0)]
        assert "<td>1250</td>" in results[1]._repr_html_()
        assert results[-1] is not None
    finally:
        shell.run_line_magic("reset", "-f")
        interactive.clear_instance()
