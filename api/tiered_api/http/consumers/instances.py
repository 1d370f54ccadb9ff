"""The REST consumers of the groups that this broker coordinates: created, found again after a restart, and ended when
nobody uses them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple
from weakref import WeakValueDictionary

from tiered.errors import Code, Refused
from tiered.groups.requests import DescribeGroupReply, DescribeGroup
from tiered.metadata.image import Image
from tiered_api.http.consumers.coordinator_calls import coordinator_of, patiently
from tiered_api.http.consumers.instance import Choices, Instance
from tiered_api.http.consumers.member import PREFIX, Wish, kept_in
from tiered_api.http.consumers.subscriptions import Patterns
from tiered_api.http.server.context import Site
from tiered_api.http.server.errors import CONSUMER_EXISTS, CONSUMER_NOT_FOUND, HttpError

INSTANCES_MAX = 1_000
INSTANCES_PER_PEER = 500
"""Of one client address: one that makes and forgets them must not keep others from theirs."""
IDLE_SECONDS = 300.0
SWEEP_SECONDS = 10.0


class Place(NamedTuple):
    """How an instance is named."""

    group: str
    name: str


class Instances:
    """One listener's consumers. `close` ends them without a word: their members stay for a session's time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._found: dict[Place, Instance] = {}
        self._opening: WeakValueDictionary[Place, asyncio.Lock] = WeakValueDictionary()
        self._counted: tuple[Image | None, Mapping[str, int]] = (None, {})
        self._patterns = Patterns(site.work, site.clock)
        self._sweeper: asyncio.Task[None] | None = None
        site.node.metrics.gauge("tiered_http_consumers", "REST consumers that live here.").read(
            lambda: float(len(self._found))
        )

    async def create(self, place: Place, choices: Choices, peer: str) -> Instance:
        """A new consumer of the client at `peer`. HttpError 409 when there is one of that name in the group."""
        async with self._alone(place):
            if place in self._found or await self._again(place, peer) is not None:
                raise HttpError(CONSUMER_EXISTS, f"consumer {place.name!r} exists already in group {place.group!r}")
            return self._add(place, choices, peer)

    async def find(self, place: Place, peer: str) -> Instance:
        """A consumer by its name; HttpError 404 when there is none."""
        instance = self._found.get(place)
        if instance is None:
            async with self._alone(place):
                instance = self._found.get(place) or await self._again(place, peer)
        if instance is None:
            raise HttpError(CONSUMER_NOT_FOUND, f"there is no consumer {place.name!r} in group {place.group!r}")
        instance.used_ns = self._site.clock.mono_ns()
        return instance

    async def delete(self, place: Place, peer: str) -> None:
        await self._end(place, await self.find(place, peer))

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for instance in list(self._found.values()):
            if instance.membership is not None:
                await instance.membership.stop()
        self._found.clear()

    def counts(self) -> Mapping[str, int]:
        """The topics that there are with their partitions; the same object until that may have changed."""
        image = self._site.node.image
        if self._counted[0] is not image:
            counts = {topic.name: len(topic.partitions) for topic in image.topics.values()}
            self._counted = (image, self._counted[1] if counts == self._counted[1] else counts)
        return self._counted[1]

    def names(self, wish: Wish) -> Callable[[Mapping[str, int]], Awaitable[tuple[str, ...]]]:
        """How a wish is held against the topics that there are. ValueError for a pattern that is not taken."""
        if wish.pattern:
            return self._patterns.matches(wish.pattern).among
        topics = tuple(sorted(wish.topics))

        async def named(_: Mapping[str, int]) -> tuple[str, ...]:
            return topics

        return named

    def _alone(self, place: Place) -> asyncio.Lock:
        """Who looks for an instance in its group asks the coordinator, which may take its time: others do not wait."""
        lock = self._opening.get(place)
        if lock is None:
            lock = self._opening[place] = asyncio.Lock()
        return lock

    def _add(self, place: Place, choices: Choices, peer: str) -> Instance:
        if len(self._found) >= INSTANCES_MAX:
            raise HttpError(429, f"there are {INSTANCES_MAX} consumers already; delete those that are not used")
        if sum(each.peer == peer for each in self._found.values()) >= INSTANCES_PER_PEER:
            raise HttpError(429, f"your address has {INSTANCES_PER_PEER} consumers already; delete unused ones")
        instance = self._found[place] = Instance(self._site, *place, choices, peer)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="rest consumers")
        return instance

    async def _again(self, place: Place, peer: str) -> Instance | None:
        """The consumer whose member the group knows still, from before a restart."""
        ask = self._site.node.coordinators.ask
        group: DescribeGroupReply = await patiently(self._site, lambda: ask(place.group, DescribeGroup(place.group)))
        for member in group.members if group.code is Code.NONE else ():
            found = Choices.found(kept_in(member.metadata)) if member.instance_id == PREFIX + place.name else None
            if found is not None:
                instance = self._add(place, found[0], peer)
                instance.join(found[1])
                return instance
        return None

    async def _end(self, place: Place, instance: Instance) -> None:
        async with instance.use():
            await instance.end()
            self._found.pop(place, None)

    async def _has_moved(self, place: Place) -> bool:
        """Whether another broker coordinates the group, and has the consumers."""
        try:
            return await coordinator_of(self._site, place.group) != self._site.node.settings.node_id
        except Refused:
            return False

    async def _sweep(self) -> None:
        """Ends what nobody used for long, and lets go what lives at another broker now: it keeps its place there."""
        while True:
            await self._site.clock.sleep(SWEEP_SECONDS)
            oldest = self._site.clock.mono_ns() - int(IDLE_SECONDS * 1e9)
            for place, instance in list(self._found.items()):
                if instance.turn.locked():
                    continue
                if await self._has_moved(place):
                    self._found.pop(place, None)
                    await instance.let_go()
                elif instance.used_ns < oldest:
                    with contextlib.suppress(HttpError):  # somebody deleted it meanwhile
                        await self._end(place, instance)
