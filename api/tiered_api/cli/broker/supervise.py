"""Processes that belong together: started at once, their output told apart by name, started again when one ends by
itself, and stopped one after the other.

While they start for the first time, one that ends without having been ready ends all: what it said is what has to be
mended. Any other is started again, after a pause that doubles while it does not stay. The first `tell` stops them in
reverse order, each within its time before it is killed; the second kills what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from tiered_api.cli.exits import Exit

STOP_SECONDS = 20.0
PAUSE_SECONDS = (1.0, 30.0)
"""Before an ended process is started again: at first, and at most."""
STEADY_SECONDS = 60.0
"""Who was ready for so long begins with the first pause again."""
READ_BYTES = 64 << 10
LINE_MAX = 64 << 10
"""A longer line is cut in pieces."""
SHELL_SIGNAL = 128

PrintLine = Callable[[str, str], None]
"""Prints a line of whoever is named."""


class Program(NamedTuple):
    """What runs under a name. `command` is asked before each start, with the line that the last one said when it was
    ready ("" the first time); such a line begins with `ready`."""

    name: str
    command: Callable[[str], Sequence[str]]
    ready_prefix: str


class ManagedProcess:
    """A program and the process that runs it now."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ready_line = ""
        self.ready_at: float | None = None
        """Since when the process that runs now is ready."""
        self.ready_seconds: float | None = None
        """Seconds for which the last process was ready; None when it never was."""
        self.process: Process | None = None
        self.is_stopping = False
        self.ended = asyncio.Event()
        """Nothing runs, and nothing will be started."""
        self.code = 0

    @property
    def name(self) -> str:
        return self.program.name

    def send(self, number: signal.Signals) -> None:
        """To the process that runs now, if there is one."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """All of them. `say` gets every line of theirs but the ready ones, and what happens to them by the name `own`."""

    def __init__(
        self,
        programs: Sequence[Program],
        print_line: PrintLine,
        own_name: str,
        *,
        stop_seconds: float = STOP_SECONDS,
        pauses: tuple[float, float] = PAUSE_SECONDS,
    ) -> None:
        self._members = [ManagedProcess(program) for program in programs]
        self._print_line = print_line
        self._own_name = own_name
        self._stop_seconds = stop_seconds
        self._pauses = pauses
        self._stop_requested = asyncio.Event()
        self._kill_requested = asyncio.Event()
        self._has_started = False
        """All were ready at once, or one after the other: the start is over."""
        self._failed: ManagedProcess | None = None

    def request_stop(self) -> None:
        """To stop; the second time, at once."""
        if self._stop_requested.is_set():
            self._kill_requested.set()
        self._stop_requested.set()

    async def run(self, ready: Callable[[Sequence[str]], None]) -> Exit | int:
        """Until told to stop, or until a first start fails. `ready` gets the ready lines once all have one. Gives 0
        when all stopped by themselves, the exit code of whoever did not start, else 1."""
        async with asyncio.TaskGroup() as group:
            for member in self._members:
                group.create_task(self._supervise(member, ready))
            await self._stop_requested.wait()
            await self._stop()
        if self._failed is not None:
            code = self._failed.code
            return code if 0 < code < SHELL_SIGNAL else Exit.FAILED
        return Exit.FAILED if any(member.code for member in self._members) else Exit.OK

    # -- one member ---------------------------------------------------------------------------------------------------

    async def _supervise(self, member: ManagedProcess, ready: Callable[[Sequence[str]], None]) -> None:
        try:
            pause = 0.0
            while not member.is_stopping:
                member.code = await self._run_process(member, ready)
                if member.is_stopping:
                    if member.code == -signal.SIGTERM and member.ready_seconds is None:
                        member.code = 0  # it was so young that it could not end in another way
                    return
                if not self._has_started and not member.ready_line:
                    self._failed = self._failed or member
                    self._report(f"{member.name} did not start: it {describe_exit(member.code)}")
                    self._stop_requested.set()
                    return
                pause = next_pause(pause, (member.ready_seconds or 0.0) >= STEADY_SECONDS, self._pauses)
                self._report(f"{member.name} {describe_exit(member.code)}, and is started again in {pause:g} s")
                member.code = 0
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stop_requested.wait()
                        return
        finally:
            member.ended.set()

    async def _run_process(self, member: ManagedProcess, ready: Callable[[Sequence[str]], None]) -> int:
        """One process from start to end; its exit code, negative for a signal."""
        member.ready_seconds = None
        try:
            # A session of its own: Ctrl-C reaches us alone, who stop them in order.
            process = await asyncio.create_subprocess_exec(
                *member.program.command(member.ready_line),
                stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._report(f"{member.name} cannot be started: {error.strerror}")
            return Exit.UNAVAILABLE
        member.process = process
        try:
            if member.is_stopping:
                member.send(signal.SIGTERM)
            assert process.stdout is not None and process.stderr is not None
            async with asyncio.TaskGroup() as readers:
                readers.create_task(self._forward_output(member, process.stdout, ready))
                readers.create_task(self._forward_output(member, process.stderr, None))
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
            if member.ready_at is not None:
                member.ready_seconds = asyncio.get_running_loop().time() - member.ready_at
            member.process = member.ready_at = None

    async def _forward_output(
        self, member: ManagedProcess, stream: asyncio.StreamReader, ready: Callable[[Sequence[str]], None] | None
    ) -> None:
        async for line in read_lines(stream):
            if ready is not None and line.startswith(member.program.ready_prefix):
                self._on_ready(member, line, ready)
            else:
                self._print_line(member.name, line)

    def _on_ready(self, member: ManagedProcess, line: str, ready: Callable[[Sequence[str]], None]) -> None:
        member.ready_line, member.ready_at = line, asyncio.get_running_loop().time()
        if self._has_started:
            self._report(f"{member.name} is ready again")
        elif all(each.ready_at is not None for each in self._members):
            self._has_started = True
            ready([each.ready_line for each in self._members])

    # -- all of them --------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        for member in self._members:
            member.is_stopping = True
        kill_requested = asyncio.create_task(self._kill_requested.wait())
        try:
            for member in reversed(self._members):
                if not member.ended.is_set():
                    await self._stop_member(member, kill_requested)
        finally:
            kill_requested.cancel()

    async def _stop_member(self, member: ManagedProcess, kill_requested: asyncio.Task[bool]) -> None:
        self._report(f"stopping {member.name}")
        member.send(signal.SIGTERM)
        gone = asyncio.create_task(member.ended.wait())
        done, _ = await asyncio.wait(
            (gone, kill_requested), timeout=self._stop_seconds, return_when=asyncio.FIRST_COMPLETED
        )  # fmt: skip
        if gone not in done:
            why = (
                "you asked again"
                if self._kill_requested.is_set()
                else f"it took more than {self._stop_seconds:g} s to stop"
            )
            self._report(f"killing {member.name}: {why}")
            member.send(signal.SIGKILL)
            await gone
        elif member.code:
            self._report(f"{member.name} {describe_exit(member.code)}")

    def _report(self, line: str) -> None:
        self._print_line(self._own_name, line)


def next_pause(last: float, was_steady: bool, pauses: tuple[float, float]) -> float:
    """How long to wait before the next start; `last` is 0 before the first."""
    first, most = pauses
    return first if was_steady or not last else min(2 * last, most)


def describe_exit(code: int) -> str:
    """An exit code as people say it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def read_lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines as they come, without their ends; the last may have none."""
    held = b""
    while chunk := await stream.read(READ_BYTES):
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        if len(held) > LINE_MAX:
            yield held.decode(errors="replace")
            held = b""
    if held:
        yield held.decode(errors="replace")
