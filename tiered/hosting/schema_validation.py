"""The validation of produced records by the schema registry, for the topics that ask for it.

The registry's log is read by whoever serves the registry, and connects here. Verdicts come from the state that was read
last. It is read again after `REFRESH_SECONDS`, and before any record is refused: a schema may be registered at another
broker and used at once. Callers that wait share one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.hot.validation import RecordFaults
from tiered.metrics import Metrics
from tiered.ports import Buffer, Clock

if TYPE_CHECKING:
    from tiered.hosting.record_judge import RecordJudge
    from tiered.registry.state import RegistryState

REFRESH_SECONDS = 10.0
"""Age of the state after which it is read again. A schema that was deleted elsewhere is good for as long."""

ReadRegistry = Callable[[], "Awaitable[RegistryState]"]
"""Returns the state with all writes that were acknowledged before. Raises `Refused` if the log cannot be read."""


class SchemaValidation:
    """The validation at one broker. Without a registry each record of such a topic is refused, so that none gets in
    unseen."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._read_registry: ReadRegistry | None = None
        self._reading = asyncio.Lock()
        self._begun = self._done = 0
        """Numbers of the last read that began, and of the last one that ended."""
        self._failure: Refused | None = None
        """The reason why the last read failed."""
        self._state: RegistryState | None = None
        self._read_ns = 0
        self._judge: RecordJudge | None = None
        self._refused = metrics.counter(
            "tiered_schema_validation_refused_total", "Batches refused because a record names no schema of its subject."
        )

    def connect(self, read_registry: ReadRegistry) -> None:
        """Reads the registry by this function from now on."""
        self._read_registry = read_registry

    async def find_faults(self, topic: str, config: TopicConfig, data: Buffer, owner: str) -> list[RecordFaults]:
        """Returns the faulty records of each batch. `data` must stay as it is until then.

        Raises `Refused` with REQUEST_TIMED_OUT if the registry or the records could not be read in time: clients repeat
        such a request.
        """
        if self._judge is None:
            from tiered.hosting.record_judge import RecordJudge  # few clusters have such a topic

            self._judge = RecordJudge()
        judge, state = self._judge, self._state
        batches = await judge.collect(topic, config, data, owner)
        found = await judge.find_faults(state, batches, owner) if state is not None else None
        is_good = found is not None and not any(found)
        is_fresh = self._clock.mono_ns() - self._read_ns < REFRESH_SECONDS * 1e9
        if found is not None and is_good and is_fresh:
            return found
        try:
            found = await judge.find_faults(await self._read(), batches, owner)
        except Refused:
            if found is None or not is_good:
                raise
        if any(found):
            self._refused.inc()
        return found

    async def _read(self) -> RegistryState:
        """Returns the outcome of a read that began after the call. Those who wait at a time share it."""
        mine = self._begun + 1
        async with self._reading:
            if self._done < mine:
                self._begun += 1
                try:
                    await self._read_now()
                finally:
                    self._done = self._begun
            if self._failure is not None:
                why = f"the schemas of the records cannot be looked up: {self._failure.why}"
                raise Refused(self._failure.code, why)
            assert self._state is not None
            return self._state

    async def _read_now(self) -> None:
        self._failure = Refused(Code.REQUEST_TIMED_OUT, "this broker serves no schema registry")
        if self._read_registry is None:
            return
        try:
            self._state = await self._read_registry()
        except Refused as refused:
            self._failure = Refused(refused.code, refused.why)  # without the frames of its traceback
            return
        self._read_ns, self._failure = self._clock.mono_ns(), None
