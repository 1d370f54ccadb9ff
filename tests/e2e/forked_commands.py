"""Commands of `tiered` as forks of one process that has imported them already: an import costs ten times what most
commands do, and four times what the start of a broker does. Each has its own descriptors, environment, signals and exit
code, as a command of a shell has.

`python -m tests.e2e.forked_commands DESCRIPTOR DESCRIPTOR` is that process. It reads a command from each message of
the first socket, and ends with the process of the tests. Shells reach the second one by its path, through
`tests/e2e/shell_command.py`."""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

from tiered_api.cli.main import main as run_command

PACKAGES = ("cluster", "group", "security", "topic", "transaction", "lake", "cold", "live")
"""Folders of commands that are imported beforehand: those that talk to brokers, and those of tables and buckets."""
BROKERS = {"serve": "tiered_api.cli.broker.serve", "up": "tiered_api.cli.broker.up"}
"""The modules of commands that are imported before the first one."""
MESSAGE_BYTES = 1 << 18


class ForkedProcess:
    """A running command with three given descriptors, in the terms of `subprocess.Popen`. Its input may be a terminal,
    which is then that of a new session."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *descriptors: int, has_terminal: bool = False
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        request = {
            "arguments": self.args,
            "environment": dict(environment),
            "directory": os.getcwd(),
            "terminal": has_terminal,
        }
        own, theirs = os.pipe()
        socket.send_fds(_parent(), [json.dumps(request).encode()], [*descriptors, theirs])
        os.close(theirs)
        self._status = os.fdopen(own, "rb", 0)
        self.pid = self._read_status()

    def _read_status(self) -> int:
        number = self._status.read(4)
        assert number is not None and len(number) == 4, "the process that forks the commands has ended"
        return int.from_bytes(number, "big")

    def poll(self) -> int | None:
        """Returns the exit code, None while the command runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code once the command has ended."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(self._read_status())
            self._status.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedCommand(ForkedProcess):
    """A running command with pipes."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        theirs, own = os.pipe()
        pairs = [(theirs, own), *(os.pipe()[::-1] for _ in range(2))]
        super().__init__(arguments, environment, *(theirs for theirs, _ in pairs))
        for theirs, _ in pairs:
            os.close(theirs)
        self.stdin = os.fdopen(own, "wb", 0)
        self.stdout, self.stderr = (os.fdopen(own, "rb", 0) for _, own in pairs[1:])

    def communicate(self, data: bytes, seconds: float) -> tuple[bytes, bytes]:
        """Writes all input, reads all output, and waits for the end. Kills a command that takes longer."""
        error: list[bytes] = []
        others = [threading.Thread(target=self._write_input, args=[data]), threading.Timer(seconds, self.kill)]
        others.append(threading.Thread(target=lambda: error.append(self.stderr.read())))
        for thread in others:
            thread.start()
        output = self.stdout.read()
        self.wait()
        for thread in others:
            if isinstance(thread, threading.Timer):
                thread.cancel()
            thread.join()
        return output, error[0]

    def _write_input(self, data: bytes) -> None:
        try:
            while data:
                data = data[self.stdin.write(data) :]
        except BrokenPipeError:
            return
        finally:
            self.stdin.close()

    def close(self) -> None:
        """Kills the command if it still runs."""
        self.kill()
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()
        self.wait()


_STARTING = threading.Lock()


@cache
def shell_socket() -> str:
    """Returns the path of the socket for commands of shells, in a folder of its owner alone."""
    _parent()
    return _shell_path()


@cache
def _shell_path() -> str:
    folder = tempfile.mkdtemp(prefix="tiered-shell-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return f"{folder}/socket"


def _parent() -> socket.socket:
    """Returns the socket of the process that forks, which is started by the first command. Threads may start their
    first commands at the same time."""
    with _STARTING:
        return _start_parent()


@cache
def _start_parent() -> socket.socket:
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as shells:
        shells.bind(_shell_path())
        shells.listen()
        descriptors = (theirs.fileno(), shells.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.forked_commands", *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def end() -> None:
        own.close()
        process.wait()

    atexit.register(end)
    return own


def serve(requests: socket.socket, shells: socket.socket) -> None:
    """Forks a command for each message, until no more can come from the tests."""
    for package in PACKAGES:
        folder = import_module(f"tiered_api.cli.{package}")
        for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            import_module(module.name)
    gc.freeze()
    # Nobody waits for the forks, which wait for the commands.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if requests in select.select([requests, shells], [], [])[0]:
            message, pipes, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 4)
            if not message:
                return
            _fork(json.loads(message), pipes, requests, shells)
        else:
            with shells.accept()[0] as shell:
                message, pipes, _, _ = socket.recv_fds(shell, MESSAGE_BYTES, 4)
            if message:  # else the shell has ended meanwhile
                _fork(json.loads(message), pipes, requests, shells)


def _fork(request: dict[str, Any], pipes: list[int], *sockets: socket.socket) -> None:
    module = BROKERS.get("".join(request["arguments"][:1]))
    if module is not None and module not in sys.modules:
        import_module(module)
        gc.freeze()
    if os.fork() == 0:
        for each in sockets:
            each.close()
        _run(request, *pipes)
    for pipe in pipes:
        os.close(pipe)


def _run(request: dict[str, Any], stdin: int, stdout: int, stderr: int, status: int) -> NoReturn:
    """Runs a command in a child of this process, which says its process id and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid != 0:
        for pipe in (stdin, stdout, stderr):
            os.close(pipe)
        os.write(status, pid.to_bytes(4, "big"))
        os.write(status, os.waitpid(pid, 0)[1].to_bytes(4, "big"))
        os._exit(0)
    os.close(status)
    for number, pipe in enumerate((stdin, stdout, stderr)):
        os.dup2(pipe, number)
        os.close(pipe)
    if request["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["directory"])
    if "mask" in request:
        os.umask(request["mask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ends: list[int] = []
    atexit.register(_leave, ends)  # the last call of all: those of the command come before it
    ends.append(run_command(request["arguments"]))
    sys.exit(ends[0])


def _leave(ends: list[int]) -> None:
    """Ends a command that has returned its exit code, without taking apart the modules that it shares with the others:
    that takes longer than most commands do."""
    if ends:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ends[0])


if __name__ == "__main__":
    serve(*(socket.socket(fileno=int(each)) for each in sys.argv[1:]))
