"""An event loop with a number as its time: it jumps to the next timer when nothing is ready.

One seed gives one order of events: ready calls run first in, first out (libraries rely on it), timers that are due in
the same nanosecond run in an order drawn from the seed. Time is counted in integer nanoseconds. Threads, sockets and
signals do not exist here: their use is an error, so that nothing real can slip in.

Several processes may share a loop: `PROCESS` names the one that a task or callback belongs to, and all that it starts
inherits the name. A process can be frozen, as by SIGSTOP, and it can be dead: then none of its tasks ever runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

from tests.sim.harness.timeouts import quick_timeouts

NS = 1_000_000_000
TASKS_AT_ONCE = 100
CALLBACK, ARGUMENTS, CONTEXT = 3, 4, 5
"""Places in a `SimHandle`."""
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PROCESS: ContextVar[str] = ContextVar("process", default="")
"""Name of the simulated process that runs now; empty outside of all processes, where nothing ever freezes."""


def process_context(name: str) -> Context:
    """Returns a context for the first task of a process: all its subtasks and callbacks belong to that process."""
    context = copy_context()
    context.run(PROCESS.set, name)
    return context


class Deadlock(AssertionError):
    """Nothing is ready, no timer is set, and the run is not over. The text names the waiting tasks and their
    positions."""


class RunTooLong(AssertionError):
    """A run took more virtual time or more steps than allowed."""


if TYPE_CHECKING:
    # The type stubs call the base abstract. Here what it does not define raises NotImplementedError: that is wanted.
    Loop = asyncio.SelectorEventLoop
else:
    Loop = asyncio.AbstractEventLoop


class OrderedTasks(dict[asyncio.Task[Any], None]):
    """Set operations that `asyncio.TaskGroup` needs, in the order of insertion. A set of tasks iterates by address, and
    a group that ends cancels its tasks in that order."""

    def add(self, task: asyncio.Task[Any]) -> None:
        self[task] = None

    def discard(self, task: asyncio.Task[Any]) -> None:
        self.pop(task, None)


@contextlib.contextmanager
def ordered_task_groups() -> Iterator[None]:
    """Makes task groups inside the context cancel their tasks in the order of creation."""
    group: Any = asyncio.TaskGroup
    begin = group.__init__

    def ordered(self: Any) -> None:
        begin(self)
        assert self._tasks == set(), "TaskGroup keeps its tasks elsewhere in this Python"
        self._tasks = OrderedTasks()

    group.__init__ = ordered
    try:
        yield
    finally:
        group.__init__ = begin


class SimHandle(list[Any]):
    """A waiting call: its time, a random number and a count that order calls of the same time, then callback, arguments
    and context. It is a list, because a run makes thousands a second: C code makes and compares lists."""

    __slots__ = ()

    def cancel(self) -> None:
        self[CALLBACK], self[ARGUMENTS] = None, ()

    def cancelled(self) -> bool:
        return self[CALLBACK] is None


class SimLoop(Loop):
    """Runs coroutines on virtual time. `now_ns` is the time, `steps` and `digest` identify the run so far."""

    def __init__(self, seed: int, *, seconds_max: float = 1e6, steps_max: int = 50_000_000) -> None:
        self.seed = seed
        self.now_ns = 0
        self.steps = 0
        self.digest = 0
        self._draw_tie = random.Random(f"{seed}/loop").random
        self._ready: deque[SimHandle] = deque()
        self._timers: list[SimHandle] = []
        self._count = 0
        self._tasks: dict[asyncio.Task[Any], str] = {}
        """All tasks that may still run, and those that ended since the last clean-up."""
        self._tasks_most = TASKS_AT_ONCE
        self._halted: dict[str, list[SimHandle] | None] = {}
        """Processes that do not run, with their waiting calls, or None for a dead one."""
        self._errors: list[dict[str, Any]] = []
        self._end_ns = round(seconds_max * NS)
        self._steps_max = steps_max
        self._running = False
        self._closed = False

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs to the end of `main`, then cancels the remaining tasks. Raises an error that no task handled."""
        gc_was_on = gc.isenabled()
        gc.disable()  # finalizers run when memory says so, not when the seed does
        try:
            with ordered_task_groups(), quick_timeouts(), asyncio.Runner(loop_factory=lambda: self) as runner:
                result = runner.run(main)
        finally:
            if gc_was_on:
                gc.enable()
        if self._errors:
            raise self._errors[0].get("exception") or AssertionError(self._errors[0]["message"])
        return result

    def run_until_complete(self, future: Awaitable[T]) -> T:  # type: ignore[override]
        task: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)
        self._running = True
        asyncio.events._set_running_loop(self)
        try:
            self._run_until_done(task)
        finally:
            asyncio.events._set_running_loop(None)
            self._running = False
        return task.result()

    def _run_until_done(self, main: asyncio.Future[Any]) -> None:
        """Runs one call after the other until `main` is done. Every event passes here, so that attributes are looked up
        once."""
        ready, halted, is_done, steps_max = self._ready, self._halted, main.done, self._steps_max
        while not is_done():
            if not ready:
                self._advance_to_timer()
            handle = ready.popleft()
            _, _, _, callback, arguments, context = handle
            if callback is None:
                continue
            if halted:
                owner = context.get(PROCESS, "")
                if owner in halted:
                    waiting = halted[owner]
                    if waiting is not None:
                        waiting.append(handle)
                    continue
            self.steps += 1
            try:
                context.run(callback, *arguments)
            except Exception as error:  # noqa: BLE001 the end of the run raises it
                self.call_exception_handler({"message": f"error in {callback!r}", "exception": error})
            if self.steps > steps_max:
                raise RunTooLong(f"{self.steps} steps seed={self.seed}")

    def _advance_to_timer(self) -> None:
        """Advances to the next timer, and makes all timers of that instant ready. The digest takes the time and the
        steps so far: an order that differs gives other steps or other times."""
        timers = self._timers
        while timers and timers[0][CALLBACK] is None:
            heappop(timers)
        if not timers:
            raise Deadlock(f"seed={self.seed} at={self.now_ns / NS}s\n" + self._describe_waiting())
        if timers[0][0] > self.now_ns:
            self.now_ns = timers[0][0]
        now_ns = self.now_ns
        if now_ns > self._end_ns:
            raise RunTooLong(f"{now_ns / NS} s seed={self.seed}\n" + self._describe_waiting())
        append = self._ready.append
        while timers and timers[0][0] <= now_ns:
            append(heappop(timers))
        self.digest = hash((self.digest, now_ns, self.steps))

    def _describe_waiting(self) -> str:
        lines = []
        for task in self._tasks:
            if not task.done():
                stack = task.get_stack(limit=1)
                place = f"{stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else "?"
                lines.append(f"  {task.get_name()} waits at {place}")
        return "\n".join(lines)

    # -- processes ----------------------------------------------------------------------------------------------------

    def freeze(self, process: str) -> None:
        """Stops a process until `resume`: timers that are due meanwhile fire late, all together."""
        self._halted.setdefault(process, [])

    def resume(self, process: str) -> None:
        """Runs the waiting callbacks of a process in the order in which they fell due. Does nothing if it was not
        frozen."""
        waiting = self._halted.get(process)
        if waiting is not None:
            del self._halted[process]
            self._ready.extend(waiting)

    def is_frozen(self, process: str) -> bool:
        return self._halted.get(process) is not None

    def end_process(self, process: str) -> None:
        """Ends a process: its remaining timers and callbacks never run."""
        assert not self.tasks_of(process), f"{process} still runs:\n{self._describe_waiting()}"
        self._halted[process] = None

    def count_tasks(self) -> Counter[str]:
        """Returns the number of tasks of each process."""
        return Counter([owner for task, owner in self._tasks.items() if not task.done()])

    def tasks_of(self, process: str) -> list[asyncio.Task[Any]]:
        """Returns the unfinished tasks of a process in the order of their start."""
        return [task for task, owner in self._tasks.items() if owner == process and not task.done()]

    # -- scheduling ---------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now_ns / NS

    def call_soon(  # type: ignore[override]
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> SimHandle:
        handle = SimHandle((0, 0.0, 0, callback, args, copy_context() if context is None else context))
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> SimHandle:
        return self.call_at_ns(self.now_ns + max(0, round(delay * NS)), callback, context, args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> SimHandle:
        return self.call_at_ns(round(when * NS), callback, context, args)

    def call_at_ns(
        self, when_ns: int, callback: Callable[..., object], context: Context | None, args: tuple[Any, ...] = ()
    ) -> SimHandle:
        self._count += 1
        handle = SimHandle(
            (when_ns, self._draw_tie(), self._count, callback, args, copy_context() if context is None else context)
        )
        heappush(self._timers, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        label = name or getattr(coro, "__qualname__", "task")
        task = asyncio.Task(coro, loop=self, name=label, context=context)
        self._tasks[task] = PROCESS.get() if context is None else context.get(PROCESS, "")
        if len(self._tasks) > self._tasks_most:
            self._tasks = {each: owner for each, owner in self._tasks.items() if not each.done()}
            self._tasks_most = 2 * len(self._tasks) + TASKS_AT_ONCE
        return task

    # -- the rest of what asyncio asks a loop -------------------------------------------------------------------------

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    get_debug = bool  # False, without a call: every future asks

    def set_debug(self, enabled: bool) -> None:
        """Does nothing: there is one mode."""

    async def shutdown_asyncgens(self) -> None:
        """Does nothing: their users close generators."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Does nothing: there is no executor."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keeps the error and raises it at the end of the run: in a simulation no error is only a line in a log."""
        self._errors.append(context)

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        raise AssertionError("a thread in a simulation")
