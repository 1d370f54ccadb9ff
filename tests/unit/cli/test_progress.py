"""Tests of the progress line: amounts that are left, lines above it, and each long command with its option."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from argparse import Namespace

import pytest

from tests.unit.cli.test_profiles import has_option, list_parsers
from tests.unit.cli.test_terminal import Screen
from tiered_api.cli.arguments import parser
from tiered_api.cli.progress import BYTES, draw_progress, show_progress

QUICK = frozenset(
    """
    acl add|acl list|acl remove|audit|cluster brokers|cluster certificates|cluster config get|cluster config list
    cluster config reset|cluster config set|cluster health|cluster info|cluster losses|cluster unregister
    cluster unthrottle|cluster upgrade|cold ls|encryption activate|encryption add|explain fetch
    explain group|explain partition|explain segment|explain table|explain topic|group delete|group describe|group list
    group offset-delete|group seek|profile clear|profile create|profile current|profile list|profile remove|profile set
    profile show|profile use|quota list|quota remove|quota set|serve|table describe|table diff|table history|table ls
    top|topic add-partitions|topic alter|topic check-settings|topic compact|topic consume|topic create|topic delete
    topic describe|topic describe-storage|topic list|topic produce|topic trim|trace|transaction abort
    transaction describe|transaction find-hanging|transaction list|up|user add|user alter|user list|user remove|version
    """.strip()
    .replace("\n", "|")
    .replace("|    ", "|")
    .split("|")
)
"""Commands that take less than two seconds, that run until they are stopped, or whose records show how far they are."""


def open_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Puts a terminal behind both streams. A fixture cannot: pytest opens its own ones after it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    made = Screen()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(sys, "stdout", made)
    return made


def test_every_command_is_quick_or_has_a_progress() -> None:
    """A new command that may take more than two seconds calls `show_progress`, and stands in the table of
    tests/e2e/test_cli_progress.py. Another one stands in QUICK."""
    long = {name for name, command in list_parsers(parser()) if has_option(command, "--no-progress")}
    assert {name for name, _ in list_parsers(parser())} - long == QUICK


def test_line_says_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = open_screen(monkeypatch)
    with draw_progress("load orders") as progress:
        progress.report(400, 1_000, "rows")
    assert "load orders" in screen.getvalue() and "600 rows left" in screen.getvalue()
    with draw_progress("load orders") as progress:
        progress.report(1_000_000, 3_500_000, BYTES)
    assert "2.5 MB left" in screen.getvalue()
    with draw_progress("look") as progress:
        progress.count(1_234, "objects")
    assert "1,234 objects so far" in screen.getvalue()
    with draw_progress("repair") as progress:
        progress.report(1, 2, "tasks")
        progress.describe("load")
    last = screen.getvalue().rpartition("0:00:00")[0].rpartition("0:00:00")[2]
    assert "load" in last and "tasks left" not in last


def test_printed_lines_stand_above_the_line_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = open_screen(monkeypatch)
    with draw_progress("load") as progress:
        progress.report(1, 2, "rows")
        print("one [bold]line[/bold]" + "x" * 200)
        print("a part", end="")
        print(" and its end")
        kept = sys.stdout
        sys.stdout.buffer.write(b'{"n": 1}\n')
        print("to errors", file=sys.stderr)
        sys.stdout.write("no end")
    print(" here", file=kept)
    shown = screen.getvalue()
    for line in ("one [bold]line[/bold]" + "x" * 200, "a part and its end", '{"n": 1}', "to errors"):
        assert f"{line}\n" in shown
    assert shown.endswith("no end here\n") and sys.stdout is screen and sys.stderr is screen
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is shown at the end"


def test_cursor_is_shown_while_the_line_is(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = open_screen(monkeypatch)
    with draw_progress("load"):
        assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")


@pytest.mark.parametrize(("is_terminal", "no_progress"), [(True, True), (False, False)])
def test_nothing_is_drawn_in_pipes_or_without_progress(
    is_terminal: bool, no_progress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Screen() if is_terminal else io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    with show_progress(Namespace(no_progress=no_progress), "load") as progress:
        progress.report(1, 2, "rows")
        progress.count(1, "rows")
        progress.describe("more")
        assert sys.stderr is stream and not progress.is_drawn
    assert stream.getvalue() == ""


def test_lines_of_children_stand_above_the_line(tmp_path: object) -> None:
    """A child such as Spark's JVM has the descriptor, and no stream of Python."""
    from tests.e2e.terminal import run_script_on_terminal

    code, shown = run_script_on_terminal(
        "import os, subprocess, sys\n"
        "from tiered_api.cli.progress import draw_progress\n"
        "with draw_progress('sql', has_children=True) as progress:\n"
        "    progress.report(1, 2, 'rows')\n"
        "    os.write(2, b'WARNING: in parts')\n"
        "    subprocess.run(['sh', '-c', 'echo \" of a child\" >&2'], check=True)\n"
        "    print('own', file=sys.stderr)\n"
        "print('after', file=sys.stderr)\n"
    )
    assert code == 0
    assert "WARNING: in parts of a child\r\n" in shown and "own\r\n" in shown and shown.endswith("after\r\n")
    assert "1 rows left" in shown


def test_module_of_the_progress_imports_no_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, tiered_api.cli.progress as p; assert 'rich' not in sys.modules"],
        env=os.environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0
