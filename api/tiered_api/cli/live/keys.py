"""Keys that are pressed while a view is open. The terminal is as before at the end."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

CHARACTERS_MAX = 32
LEAVE = "q"
"""The key that ends a view."""


@contextmanager
def read_keys(pressed: asyncio.Queue[str]) -> Iterator[None]:
    """Puts each key into a queue, which drops those for which it has no room."""
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            data = os.read(number, CHARACTERS_MAX)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            loop.remove_reader(number)
            data = LEAVE.encode()
        for key in data.decode(errors="replace"):
            if not pressed.full():
                pressed.put_nowait(key)

    tty.setcbreak(number)
    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
