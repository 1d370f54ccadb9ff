"""Progress of a long command on a terminal: one line on the error stream says what the command does and what is left.

Nothing is drawn in pipes, and with `--no-progress`. Lines that the command prints meanwhile stand above it, and so do
those of its child processes, such as Spark's.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from tiered_api.cli.output import format_size
from tiered_api.cli.terminal import can_draw, is_terminal, open_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

BYTES = "bytes"
"""The unit of amounts that are shown as sizes."""
LOOKS_PER_SECOND = 4.0
LINE_CHARS = 1 << 16
"""Characters of a child's line that are printed at once."""
DRAIN_SECONDS = 0.05
"""Wait for the last lines of a child process."""


class Progress:
    """The work of a command: what is done and what is left. Without a terminal, reports change nothing."""

    def __init__(self, bars: Bars | None = None, task: TaskID | None = None) -> None:
        self._bars = bars
        self._task = task

    @property
    def is_drawn(self) -> bool:
        """True if reports are seen."""
        return self._bars is not None

    def describe(self, words: str) -> None:
        """Says what the command does now, of which nothing is known to be left."""
        if self._bars is not None and self._task is not None:
            self._bars.reset(self._task, total=None, description=words, left="")

    def report(self, done: float, total: float, unit: str) -> None:
        """Says how much is done and left."""
        if self._bars is not None and self._task is not None:
            left = max(total - done, 0)
            text = format_size(left) if unit == BYTES else f"{left:,.0f} {unit}"
            self._bars.update(self._task, completed=min(done, total), total=total, left=f"{text} left")

    def count(self, done: int, unit: str) -> None:
        """Says how much is done, of an amount that only its end will tell."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=0, total=None, left=f"{done:,} {unit} so far")


@contextmanager
def show_progress(args: Namespace, words: str, *, has_children: bool = False) -> Iterator[Progress]:
    """Yields the progress of a command that has the option `--no-progress`. `has_children`: child processes write to
    the error stream."""
    with draw_progress(words, is_wanted=not args.no_progress, has_children=has_children) as progress:
        yield progress


@contextmanager
def draw_progress(words: str, *, is_wanted: bool = True, has_children: bool = False) -> Iterator[Progress]:
    """Yields a line on the terminal, or a progress without a line."""
    if not is_wanted or not can_draw(sys.stderr, "no progress is shown", "--no-progress"):
        yield Progress()
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    with ExitStack() as opened:
        console = opened.enter_context(_hold_descriptor()) if has_children else open_console(sys.stderr)
        columns = (
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[left]}", markup=False),
            TimeElapsedColumn(),
        )
        bars = Bars(
            *columns, console=console, transient=True, refresh_per_second=LOOKS_PER_SECOND,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        for name in ("stdout", "stderr"):
            if is_terminal(getattr(sys, name)) and not (has_children and name == "stderr"):
                opened.enter_context(_print_above(name, console))
        opened.enter_context(bars)
        console.show_cursor(True)  # a command that is killed leaves the terminal as it was
        task = bars.add_task(words, total=None, left="")
        bars.refresh()
        yield Progress(bars, task)
        bars.refresh()


class _Above:
    """A stream whose whole lines stand above the progress. Behind its end it is the stream itself."""

    def __init__(self, stream: TextIO, console: Console) -> None:
        self._stream = stream
        self._console: Console | None = console
        self._part = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> _AboveBytes:
        return _AboveBytes(self)

    def write(self, text: str) -> int:
        if self._console is None:
            return self._stream.write(text)
        *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            _print_line(self._console, line)
        return len(text)

    def flush(self) -> None:
        if self._console is None:
            self._stream.flush()

    def end(self) -> None:
        """Writes the rest of a line. Later writes go to the terminal as they are."""
        self._console = None
        self._stream.write(self._part)
        self._stream.flush()


class _AboveBytes:
    """The bytes behind such a stream."""

    def __init__(self, above: _Above) -> None:
        self._above = above

    def write(self, data: bytes) -> int:
        self._above.write(data.decode(errors="replace"))
        return len(data)

    def flush(self) -> None:
        self._above.flush()


@contextmanager
def _print_above(name: str, console: Console) -> Iterator[None]:
    """Lets the lines of a stream of this process stand above the progress."""
    stream: TextIO = getattr(sys, name)
    above = _Above(stream, console)
    setattr(sys, name, cast(TextIO, above))
    try:
        yield
    finally:
        setattr(sys, name, stream)
        above.end()


@contextmanager
def _hold_descriptor() -> Iterator[Console]:
    """Yields the terminal behind the error stream. All that this process and its children write to the error stream
    comes through a pipe meanwhile, and stands above the progress. Children keep the pipe until they end."""
    sys.stderr.flush()
    number = sys.stderr.fileno()
    console = open_console(os.fdopen(os.dup(number), "w", encoding="utf-8", errors="replace"))
    readable, writable = os.pipe()
    os.dup2(writable, number)
    os.close(writable)
    threading.Thread(target=_forward_lines, args=[readable, console], name="progress-lines", daemon=True).start()
    try:
        yield console
    finally:
        sys.stderr.flush()
        while select.select([readable], [], [], DRAIN_SECONDS)[0]:
            pass
        os.dup2(console.file.fileno(), number)


def _forward_lines(readable: int, console: Console) -> None:
    """Prints the lines that come through a pipe, until all who write to it have ended."""
    with os.fdopen(readable, encoding="utf-8", errors="replace") as lines:
        while line := lines.readline(LINE_CHARS):
            _print_line(console, line.rstrip("\n"))


def _print_line(console: Console, line: str) -> None:
    from rich.text import Text

    console.print(Text.from_ansi(line), soft_wrap=True)
