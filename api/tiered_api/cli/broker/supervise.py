"""Child processes of one command: started together, their output marked with their names, restarted when they exit, and
stopped one after the other.

If a process exits before it was ready for the first time, all are stopped: its output names the problem to fix. Any
other process is restarted after a pause, which doubles while the process keeps exiting. The first `request_stop` stops
them in reverse order; each has a time limit before it is killed. The second call kills all that are left.
`request_restart` restarts them one after the other: each is ready again before the next one is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, TextIO

from tiered_api.cli.exits import Exit

READY = "tiered is ready: "
"""Beginning of the line of a broker that serves."""
STOP_SECONDS = 20.0
PAUSE_SECONDS = (1.0, 30.0)
"""Pause before a restart: the first one, and the longest one."""
STEADY_SECONDS = 60.0
"""A process that was ready for this long gets the first pause again."""
READ_BYTES = 64 << 10
LINE_MAX = 64 << 10
"""A longer line is cut into pieces."""
SHELL_SIGNAL = 128

PrintLine = Callable[[str, str], None]
"""Prints a line of a named process."""


class Program(NamedTuple):
    """A named command. `command` is called before each start with the last ready line of the process ("" the first
    time). A ready line begins with `ready_prefix`. The process inherits the descriptors in `descriptors`. Its first
    start waits until the programs that `after` names are ready."""

    name: str
    command: Callable[[str], Sequence[str]]
    ready_prefix: str
    descriptors: tuple[int, ...] = ()
    after: frozenset[str] = frozenset()


class ManagedProcess:
    """A program and its current process."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ready_line = ""
        self.ready_at: float | None = None
        """Time since which the current process is ready."""
        self.ready_seconds: float | None = None
        """Seconds for which the last process was ready; None if it never was."""
        self.process: Process | None = None
        self.is_stopping = False
        self.is_restarting = False
        """True if it was stopped to be started again at once."""
        self.settled = asyncio.Event()
        """Set when the process is ready, or ended before it was."""
        self.was_ready = asyncio.Event()
        self.ended = asyncio.Event()
        """True if no process runs, and none will be started."""
        self.code = 0

    @property
    def name(self) -> str:
        return self.program.name

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the current process, if there is one."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """All processes. `print_line` gets every line of theirs except ready lines, and the supervisor's own lines under
    `own_name`."""

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
        self._restart_requested = asyncio.Event()
        self._has_started = False
        """True once every process has been ready: the start is over."""
        self._failed: ManagedProcess | None = None

    def request_stop(self) -> None:
        """Requests a stop; the second time, an immediate one."""
        if self._stop_requested.is_set():
            self._kill_requested.set()
        self._stop_requested.set()

    def request_restart(self) -> None:
        """Requests a restart of all processes, one after the other. A request while one is under way does nothing."""
        self._restart_requested.set()

    async def run(self, ready: Callable[[Sequence[str]], None]) -> Exit | int:
        """Runs until a stop is requested, or until a first start fails. `ready` gets the ready lines once all have one.
        Returns 0 if all stopped in order, the exit code of a process that did not start, else 1."""
        async with asyncio.TaskGroup() as group:
            for member in self._members:
                group.create_task(self._supervise(member, ready))
            restarts = group.create_task(self._restart_on_request())
            await self._stop_requested.wait()
            restarts.cancel()
            await self._stop()
        if self._failed is not None:
            code = self._failed.code
            return code if 0 < code < SHELL_SIGNAL else Exit.FAILED
        return Exit.FAILED if any(member.code for member in self._members) else Exit.OK

    # -- one member ---------------------------------------------------------------------------------------------------

    async def _supervise(self, member: ManagedProcess, ready: Callable[[Sequence[str]], None]) -> None:
        try:
            pause = 0.0
            await self._wait_for_others(member)
            while not member.is_stopping:
                member.code = await self._run_process(member, ready)
                if member.is_stopping:
                    if member.code == -signal.SIGTERM and member.ready_seconds is None:
                        member.code = 0  # it had not started enough to end in another way
                    return
                if member.is_restarting:
                    member.is_restarting = False
                    pause = 0.0
                    continue
                member.settled.set()
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

    async def _wait_for_others(self, member: ManagedProcess) -> None:
        """Waits until the programs before this one are ready, or a stop is requested."""
        ready = [each.was_ready for each in self._members if each.name in member.program.after]
        if not ready:
            return
        self._report(f"{member.name} starts after {', '.join(sorted(member.program.after))}")
        async with asyncio.TaskGroup() as group:
            waits = group.create_task(_wait_for_all(ready))
            stops = group.create_task(self._stop_requested.wait())
            await asyncio.wait((waits, stops), return_when=asyncio.FIRST_COMPLETED)
            member.is_stopping = member.is_stopping or self._stop_requested.is_set()
            waits.cancel()
            stops.cancel()

    async def _run_process(self, member: ManagedProcess, ready: Callable[[Sequence[str]], None]) -> int:
        """Runs one process from start to end. Returns its exit code, negative for a signal."""
        member.ready_seconds = None
        try:
            # A session of its own: Ctrl-C reaches only this command, which stops the processes in order.
            process = await asyncio.create_subprocess_exec(
                *member.program.command(member.ready_line),
                stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True, pass_fds=member.program.descriptors,
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
        member.settled.set()
        member.was_ready.set()
        if self._has_started:
            self._report(f"{member.name} is ready again")
        elif all(each.ready_at is not None for each in self._members):
            self._has_started = True
            ready([each.ready_line for each in self._members])

    # -- all of them --------------------------------------------------------------------------------------------------

    async def _restart_on_request(self) -> None:
        while True:
            await self._restart_requested.wait()
            if await self._restart():
                self._report("all processes were restarted")
            self._restart_requested.clear()

    async def _restart(self) -> bool:
        """Restarts the processes one after the other. Returns False if one does not get ready: the others go on as they
        are, and the one is started again as after any other end."""
        for member in self._members:
            if member.ready_at is None:
                self._report(f"no restart: {member.name} is not ready")
                return False
        for member in self._members:
            if member.ready_at is None:  # it has ended meanwhile, and is started again anyway
                continue
            self._report(f"restarting {member.name}")
            process, member.is_restarting = member.process, True
            member.settled.clear()
            member.send(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._stop_seconds):
                    if process is not None:
                        await process.wait()
            except TimeoutError:
                self._report(f"killing {member.name}: it took more than {self._stop_seconds:g} s to stop")
                member.send(signal.SIGKILL)
            await member.settled.wait()
            if member.ready_at is None:
                self._report(f"the restart ends here: {member.name} did not get ready")
                return False
        return True

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
                "second signal"
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


async def _wait_for_all(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


def stop_on_signals(supervisor: Supervisor) -> None:
    """Stops all processes on SIGTERM, Ctrl-C and the end of the terminal, unless a caller ignores the last one."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN or number is not signal.SIGHUP:
            loop.add_signal_handler(number, supervisor.request_stop)


def restart_on_signal(supervisor: Supervisor) -> None:
    """Restarts the processes one after the other on SIGUSR1."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, supervisor.request_restart)


def print_line(line: str, where: TextIO) -> None:
    """Prints a line. The processes go on if the reader of the output is gone."""
    with contextlib.suppress(OSError):
        print(line, file=where, flush=True)


def next_pause(last: float, was_steady: bool, pauses: tuple[float, float]) -> float:
    """Returns the pause before the next start; `last` is 0 before the first."""
    first, most = pauses
    return first if was_steady or not last else min(2 * last, most)


def describe_exit(code: int) -> str:
    """Returns an exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def read_lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yields lines as they come, without their ends; the last may have none."""
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
