"""Commands on a terminal of their own, as people run them: what they draw, and keys that are pressed meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from tests.e2e.forked_commands import ForkedProcess
from tests.e2e.serving import SECONDS

COLUMNS, LINES = 100, 40


class Terminal:
    """A command that runs on a pseudo-terminal. `written` has all that it wrote, with the controls of the terminal.
    `command` is what a new process runs, with the arguments; without it a fork runs the command `tiered`."""

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        output: int | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.written = ""
        whole = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1", **(env or {})}
        streams = (slave, slave if output is None else output, slave)
        self.process = (
            _start([*command, *arguments], whole, *streams)
            if command
            else ForkedProcess(arguments, whole, *streams, has_terminal=True)
        )
        os.close(slave)

    def wait_for(self, condition: Callable[[str], bool]) -> str:
        """Returns all that was written once it fulfils a condition."""
        deadline = time.monotonic() + SECONDS
        while not condition(self.written):
            assert self._read(deadline), self.written
        return self.written

    def press(self, keys: str) -> None:
        """Presses keys."""
        os.write(self._master, keys.encode())

    def end(self) -> int:
        """Reads until the command ends. Returns its exit code."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(max(0.0, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        """Reads what comes next. False at the end."""
        left = deadline - time.monotonic()
        assert left > 0 and select.select([self._master], [], [], left)[0], self.written
        try:
            data = os.read(self._master, 1 << 16)
        except OSError as error:
            assert error.errno == errno.EIO, error
            return False
        self.written += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def _start(
    command: list[str], environment: dict[str, str], stdin: int, stdout: int, stderr: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True,
        preexec_fn=_take_terminal,
    )  # fmt: skip


def _take_terminal() -> None:
    """Makes the terminal that of the new session, so that Ctrl-C is a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def run_on_terminal(
    *arguments: str, env: dict[str, str] | None = None, output: int | None = None, command: Sequence[str] = ()
) -> tuple[int, str]:
    """Runs a command to its end. Returns its exit code and all that it wrote to the terminal."""
    with Terminal(*arguments, env=env, output=output, command=command) as running:
        code = running.end()
        return code, running.written


def run_script_on_terminal(script: str) -> tuple[int, str]:
    """Runs a text of Python to its end. Returns its exit code and all that it wrote to the terminal."""
    with Terminal(script, command=[sys.executable, "-c"]) as command:
        code = command.end()
        return code, command.written
