"""The shell of `tiered sql`: lines until a `;`, history, completion by TAB, a pager, and Ctrl-C that cancels a query.

Without a terminal it runs the statements of its input, and ends at the first error.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import TextIO

from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.query.output import render_lines
from pyspark_tiered.query.text import is_complete, quote_name, tokens
from tiered.errors import Code, Corrupt, Refused, Unavailable

PROMPT, MORE = "tiered> ", "   ...> "
HISTORY = Path("~/.cache/tiered/sql_history")
HISTORY_LINES = 1000
STATEMENT_CHARS = 1 << 20
COMPLETED_TABLES = 10_000
PAGER = "less -SFRX"
FORMATS = ("text", "json", "csv")
HELP = """\
SELECT ...;           runs a query: it ends with ';' and may have several lines
\\d                    lists the tables
\\d NAME               lists the columns of a table
\\f text|json|csv      sets the form of the output
\\q                    ends the shell, as Ctrl-D does
TAB completes names; Ctrl-C cancels a query."""
KEYWORDS = [
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "HAVING",
    "JOIN",
    "LEFT",
    "ON",
    "USING",
    "AS",
    "AND",
    "OR",
    "NOT",
    "IN",
    "BETWEEN",
    "LIKE",
    "IS",
    "NULL",
    "DISTINCT",
    "UNION",
    "ALL",
    "WITH",
    "VALUES",
    "DESCRIBE",
    "SUMMARIZE",
    "VERSION",
    "OF",
    "TIMESTAMP",
    "count",
    "sum",
    "avg",
    "min",
    "max",
]


class Shell:
    """A shell over one session."""

    def __init__(self, session: SqlSession, output_format: str = "text") -> None:
        self._session = session
        self._format = output_format
        self._tables: list[str] | None = None

    def interact(self) -> None:
        """Reads statements from a terminal until its end."""
        print("Statements end with ';'. \\? shows help, \\q or Ctrl-D ends.")
        with suppress(ImportError):
            self._set_up_lines()
        while True:
            statement = None
            try:
                statement = _read_statement(input)
                if statement.strip().rstrip(";") in ("\\q", "exit", "quit"):
                    return
                self._run_timed(statement)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print("" if statement is None else "cancelled")
            except (Refused, Unavailable, Corrupt) as failure:
                print(f"tiered: {failure}", file=sys.stderr)

    def run_script(self, source: TextIO) -> None:
        """Runs the statements of a text. Raises the error of the first one that fails."""

        def read(_: str) -> str:
            line = source.readline(STATEMENT_CHARS)
            if not line:
                raise EOFError
            return line

        while True:
            try:
                statement = _read_statement(read)
            except EOFError:
                return
            for line in self._lines(statement):
                print(line)

    def _run_timed(self, statement: str) -> None:
        start = time.monotonic()
        count = show_paged(self._lines(statement))
        if not statement.lstrip().startswith("\\") and count >= 0 and self._format == "text":
            print(f"({max(count - 2, 0):,} rows, {time.monotonic() - start:.2f} s)")

    def _lines(self, statement: str) -> Iterator[str]:
        """Yields the lines of the answer."""
        if not statement.lstrip().startswith("\\"):
            running = self._session.run(statement)
            for note in running.notes:
                print(f"tiered: {note}", file=sys.stderr)
            yield from render_lines(running.columns, running.rows, self._format)
            return
        command, *words = statement.split()
        match command, words:
            case "\\d", []:
                yield from self._session.tables()
            case "\\d", [name]:
                yield from self._session.columns(name)
            case "\\f", [form] if form in FORMATS:
                self._format = form
            case "\\?", []:
                yield HELP
            case _:
                raise Refused(Code.INVALID_REQUEST, f"unknown command {statement.strip()!r}: \\? shows help")

    def _set_up_lines(self) -> None:
        import atexit
        import readline

        path = HISTORY.expanduser()
        with suppress(OSError):
            readline.read_history_file(path)
        readline.set_history_length(HISTORY_LINES)
        atexit.register(_write_history, path)
        readline.set_completer_delims(" \t\n,()=<>;+-*/")
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        readline.set_completer(lambda word, number: self._complete(word, readline.get_line_buffer(), number))

    def _complete(self, word: str, line: str, number: int) -> str | None:
        try:
            if self._tables is None:
                with closing(self._session.tables()) as names:
                    self._tables = list(islice(names, COMPLETED_TABLES))
            found = complete(word, line, self._tables, self._session.columns)
        except (Refused, Unavailable, Corrupt):
            return None
        return found[number] if number < len(found) else None


def complete(word: str, line: str, tables: Sequence[str], columns_of: Callable[[str], Sequence[str]]) -> list[str]:
    """Returns what a word may become: columns of the tables that the line names, then tables, then words of SQL."""
    named = [token.text.strip('"`') for token in tokens(line) if token.kind in ("word", "quoted", "backtick")]
    candidates = [
        quote_if_needed(column) for name in dict.fromkeys(named) if name in tables for column in columns_of(name)
    ]
    candidates += [quote_if_needed(name) for name in tables]
    candidates += [each.lower() if word.islower() else each for each in KEYWORDS]
    low = word.lower().lstrip('"')
    return list(dict.fromkeys(each for each in candidates if each.lower().lstrip('"').startswith(low)))


def quote_if_needed(name: str) -> str:
    """Returns a name as a query needs it: in quotes if it is no plain word."""
    return name if name.isidentifier() and name.isascii() else quote_name(name)


def show_paged(lines: Iterable[str]) -> int:
    """Prints lines, on a terminal by a pager. Returns their number; -1 if the reader left before the end."""
    first = next(iter(lines := iter(lines)), None)  # errors come before the pager
    if first is None:
        return 0
    pager = _start_pager() if sys.stdout.isatty() else None
    if pager is None or pager.stdin is None:
        count = 1
        print(first)
        for line in lines:
            print(line)
            count += 1
        return count
    count = 0
    try:
        pager.stdin.write(f"{first}\n")
        count = 1
        for line in lines:
            pager.stdin.write(f"{line}\n")
            count += 1
        pager.stdin.flush()
    except BrokenPipeError:
        count = -1
    finally:
        _wait_for(pager)
    return count


def _start_pager() -> subprocess.Popen[str] | None:
    try:
        return subprocess.Popen(shlex.split(os.environ.get("PAGER") or PAGER), stdin=subprocess.PIPE, text=True)
    except (OSError, ValueError):
        return None


def _wait_for(pager: subprocess.Popen[str]) -> None:
    with suppress(BrokenPipeError):
        assert pager.stdin is not None
        pager.stdin.close()
    while True:
        with suppress(KeyboardInterrupt):  # it is meant for the pager, which stays until its user leaves
            pager.wait()
            return


def _read_statement(read: Callable[[str], str]) -> str:
    """Returns the lines up to a `;`, or one line that begins with a backslash. Raises `EOFError`, and `Refused`."""
    text = ""
    while True:
        try:
            line = read(MORE if text.strip() else PROMPT)
        except EOFError:
            if text.strip():
                return text
            raise
        text += line if line.endswith("\n") else f"{line}\n"
        if len(text) > STATEMENT_CHARS:
            raise Refused(Code.INVALID_REQUEST, f"a statement has at most {STATEMENT_CHARS:,} characters")
        is_command = text.lstrip().startswith("\\") or text.strip().lower() in ("exit", "quit")
        if is_command or is_complete(text):
            return text


def _write_history(path: Path) -> None:
    import readline

    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.write_history_file(path)
