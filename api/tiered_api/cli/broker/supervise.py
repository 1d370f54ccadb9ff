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

Say = Callable[[str, str], None]
"""Prints a line of whoever is named."""


class Program(NamedTuple):
    """What runs under a name. `command` is asked before each start, with the line that the last one said when it was
    ready ("" the first time); such a line begins with `ready`."""

    name: str
    command: Callable[[str], Sequence[str]]
    ready: str


class Member:
    """A program and the process that runs it now."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ready_line = ""
        self.ready_at: float | None = None
        """Since when the process that runs now is ready."""
        self.stayed: float | None = None
        """Seconds for which the last process was ready; None when it never was."""
        self.process: Process | None = None
        self.leaving = False
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


class Fleet:
    """All of them. `say` gets every line of theirs but the ready ones, and what happens to them by the name `own`."""

    def __init__(
        self,
        programs: Sequence[Program],
        say: Say,
        own: str,
        *,
        stop_seconds: float = STOP_SECONDS,
        pauses: tuple[float, float] = PAUSE_SECONDS,
    ) -> None:
        self._members = [Member(program) for program in programs]
        self._say = say
        self._own = own
        self._stop_seconds = stop_seconds
        self._pauses = pauses
        self._told = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stood = False
        """All were ready at once, or one after the other: the start is over."""
        self._failed: Member | None = None

    def tell(self) -> None:
        """To stop; the second time, at once."""
        if self._told.is_set():
            self._hurry.set()
        self._told.set()

    async def run(self, ready: Callable[[Sequence[str]], None]) -> Exit | int:
        """Until told to stop, or until a first start fails. `ready` gets the ready lines once all have one. Gives 0
        when all stopped by themselves, the exit code of whoever did not start, else 1."""
        async with asyncio.TaskGroup() as group:
            for member in self._members:
                group.create_task(self._keep(member, ready))
            await self._told.wait()
            await self._stop()
        if self._failed is not None:
            code = self._failed.code
            return code if 0 < code < SHELL_SIGNAL else Exit.FAILED
        return Exit.FAILED if any(member.code for member in self._members) else Exit.OK

    # -- one member ---------------------------------------------------------------------------------------------------

    async def _keep(self, member: Member, ready: Callable[[Sequence[str]], None]) -> None:
        try:
            pause = 0.0
            while not member.leaving:
                member.code = await self._live(member, ready)
                if member.leaving:
                    if member.code == -signal.SIGTERM and member.stayed is None:
                        member.code = 0  # it was so young that it could not end in another way
                    return
                if not self._stood and not member.ready_line:
                    self._failed = self._failed or member
                    self._note(f"{member.name} did not start: it {ending(member.code)}")
                    self._told.set()
                    return
                pause = next_pause(pause, (member.stayed or 0.0) >= STEADY_SECONDS, self._pauses)
                self._note(f"{member.name} {ending(member.code)}, and is started again in {pause:g} s")
                member.code = 0
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._told.wait()
                        return
        finally:
            member.ended.set()

    async def _live(self, member: Member, ready: Callable[[Sequence[str]], None]) -> int:
        """One process from start to end; its exit code, negative for a signal."""
        member.stayed = None
        try:
            # A session of its own: Ctrl-C reaches us alone, who stop them in order.
            process = await asyncio.create_subprocess_exec(
                *member.program.command(member.ready_line),
                stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._note(f"{member.name} cannot be started: {error.strerror}")
            return Exit.UNAVAILABLE
        member.process = process
        try:
            if member.leaving:
                member.send(signal.SIGTERM)
            assert process.stdout is not None and process.stderr is not None
            async with asyncio.TaskGroup() as readers:
                readers.create_task(self._pass_on(member, process.stdout, ready))
                readers.create_task(self._pass_on(member, process.stderr, None))
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
            if member.ready_at is not None:
                member.stayed = asyncio.get_running_loop().time() - member.ready_at
            member.process = member.ready_at = None

    async def _pass_on(
        self, member: Member, stream: asyncio.StreamReader, ready: Callable[[Sequence[str]], None] | None
    ) -> None:
        async for line in lines(stream):
            if ready is not None and line.startswith(member.program.ready):
                self._is_ready(member, line, ready)
            else:
                self._say(member.name, line)

    def _is_ready(self, member: Member, line: str, ready: Callable[[Sequence[str]], None]) -> None:
        member.ready_line, member.ready_at = line, asyncio.get_running_loop().time()
        if self._stood:
            self._note(f"{member.name} is ready again")
        elif all(each.ready_at is not None for each in self._members):
            self._stood = True
            ready([each.ready_line for each in self._members])

    # -- all of them --------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        for member in self._members:
            member.leaving = True
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            for member in reversed(self._members):
                if not member.ended.is_set():
                    await self._end(member, hurry)
        finally:
            hurry.cancel()

    async def _end(self, member: Member, hurry: asyncio.Task[bool]) -> None:
        self._note(f"stopping {member.name}")
        member.send(signal.SIGTERM)
        gone = asyncio.create_task(member.ended.wait())
        done, _ = await asyncio.wait(
            (gone, hurry), timeout=self._stop_seconds, return_when=asyncio.FIRST_COMPLETED
        )  # fmt: skip
        if gone not in done:
            why = "you asked again" if self._hurry.is_set() else f"it took more than {self._stop_seconds:g} s to stop"
            self._note(f"killing {member.name}: {why}")
            member.send(signal.SIGKILL)
            await gone
        elif member.code:
            self._note(f"{member.name} {ending(member.code)}")

    def _note(self, line: str) -> None:
        self._say(self._own, line)


def next_pause(last: float, steady: bool, pauses: tuple[float, float]) -> float:
    """How long to wait before the next start; `last` is 0 before the first."""
    first, most = pauses
    return first if steady or not last else min(2 * last, most)


def ending(code: int) -> str:
    """An exit code as people say it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
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
