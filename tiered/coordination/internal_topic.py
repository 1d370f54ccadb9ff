"""An internal topic, created on first need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tiered.controller.channel import RequestChannel
from tiered.controller.member_view import MemberView
from tiered.controller.placement import count_machines
from tiered.controller.requests import CreateTopic
from tiered.errors import Code, Refused

CREATE_SECONDS = 5.0
"""Time that a caller waits for the creation of an internal topic, together with the callers before it."""


class InternalTopicSize(NamedTuple):
    """Number of partitions of a new internal topic, and of replicas if there are enough brokers."""

    partitions: int
    replication_factor: int


class InternalTopic:
    """The internal topic `name`. `size` returns its size according to the settings in force; `configs` are settings of
    the topic itself, for one that the broker gives none by its name."""

    def __init__(
        self,
        name: str,
        size: Callable[[], InternalTopicSize],
        view: MemberView,
        channel: RequestChannel,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._size = size
        self._view = view
        self._channel = channel
        self._configs = configs or {}
        self._create_lock = asyncio.Lock()

    async def ensure(self) -> None:
        """Creates the topic if it does not exist. Raises `Refused` with COORDINATOR_NOT_AVAILABLE if that fails."""
        if self._name in self._view.image.topics and not self._create_lock.locked():
            return
        try:
            async with asyncio.timeout(CREATE_SECONDS), self._create_lock:
                if self._name not in self._view.image.topics:
                    await self._create()
        except TimeoutError:
            why = f"{self._name} was not made within {CREATE_SECONDS:g} s"
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, why) from None

    async def _create(self) -> None:
        size = self._size()
        # A first machine alone creates as many replicas as there are machines. Kafka refuses until there are enough.
        image = self._view.image
        replicas = min(size.replication_factor, max(1, count_machines(image.placement_racks(), image.machines())))
        try:
            await self._channel.submit(CreateTopic(self._name, size.partitions, replicas, configs=self._configs))
        except Refused as refused:
            # If it exists already, its creation was requested by a caller that is gone, and is not committed yet.
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, f"{self._name}: {refused.why}") from None
