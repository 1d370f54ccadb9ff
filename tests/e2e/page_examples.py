"""Examples of pages: commands of a shell, and the output that stands behind them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.e2e.forked_commands import shell_socket

_BLOCK = re.compile(r"(<!-- not run: .*? -->\n)?```sh\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
SHELL_SECONDS = 240.0
END = "=== the block ends with"


def read_examples(page: str) -> Iterator[tuple[str, str | None]]:
    """Yields the commands of each block of a page with their output, None if the page shows none. Leaves out blocks
    that are marked as not run."""
    for found in _BLOCK.finditer(page):
        if not found[1]:
            yield found[2], found[3]


def check_output(commands: str, said: str, shown: str) -> None:
    """Fails if a command did not say what its page shows. `...` stands for any text of a line."""
    got, wanted = said.splitlines(), shown.splitlines()
    assert len(got) == len(wanted), (commands, said)
    for line, pattern in zip(got, wanted, strict=True):
        assert re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), line), (commands, line, pattern)


def run_blocks(blocks: list[str], folder: Path, path: str, settings: Mapping[str, str]) -> list[tuple[str, int]]:
    """Returns what each block printed, and its exit code. One shell runs them all, and nothing that it started
    remains."""
    script = "".join(f"{{\n{block}}} 2>&1\necho '{END}' $?\n" for block in blocks)
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("TIERED_", "XDG_"))}
    shell = subprocess.Popen(
        ["bash"],
        cwd=folder,
        env={**environment, **settings, "PATH": path, "HOME": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate(script, SHELL_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    parts = re.split(rf"{re.escape(END)} (\d+)\n", said)
    return [(text, int(code)) for text, code in zip(parts[::2], parts[1::2], strict=False)]


def check_page(page: str, folder: Path, path: str, settings: Mapping[str, str] | None = None) -> None:
    """Runs the commands of a page in one shell in a folder. Each block has to succeed and to print what the page
    shows."""
    examples = list(read_examples(page))
    ran = run_blocks([commands for commands, _ in examples], folder, path, settings or {})
    for (commands, shown), (said, code) in zip(examples, ran, strict=False):
        check_output(commands, said, shown or "")
        assert code == 0, (commands, said)
    assert len(ran) == len(examples), "the shell ended early"


def write_command(folder: Path) -> None:
    """Writes the command `tiered` of this tree, and `python`, into a folder for the search path of a shell. Brokers are
    new processes of the shell, which may end them; other commands are forks."""
    folder.mkdir(exist_ok=True)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = folder / "tiered"
    fork = f"{sys.executable} -I -S {Path(__file__).with_name('shell_command.py')} {shell_socket()}"
    new = f'serve) exec {sys.executable} -m tiered_api.cli.main "$@";;'
    command.write_text(f'#!/bin/sh\ncase "$1" in {new} *) exec {fork} "$@";; esac\n')
    command.chmod(0o755)
