"""Examples of pages: commands of a shell, and the output that stands behind them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(r"```sh\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def read_examples(page: str) -> Iterator[tuple[str, str | None]]:
    """Yields the commands of each block of a page with their output, None if the page shows none."""
    for found in _BLOCK.finditer(page):
        yield found[1], found[2]


def check_output(commands: str, said: str, shown: str) -> None:
    """Fails if a command did not say what its page shows. `...` stands for any text of a line."""
    got, wanted = said.splitlines(), shown.splitlines()
    assert len(got) == len(wanted), (commands, said)
    for line, pattern in zip(got, wanted, strict=True):
        assert re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), line), (commands, line, pattern)


def write_command(folder: Path) -> None:
    """Writes the command `tiered` of this tree into a folder, for the search path of a shell."""
    folder.mkdir(exist_ok=True)
    command = folder / "tiered"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tiered_api.cli.main "$@"\n')
    command.chmod(0o755)
