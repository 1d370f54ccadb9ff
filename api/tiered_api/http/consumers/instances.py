"""The REST consumers of the groups that this broker coordinates: created, restored after a restart, and ended when they
are idle or their user has gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakValueDictionary

from tiered.errors import Code, Refused
from tiered.groups.requests import DescribeGroup, DescribeGroupReply
from tiered.quotas.shares import REST_CONSUMERS, Holdings
from tiered.security.principal import Caller
from tiered_api.http.consumers.coordinator_calls import find_coordinator, retry_while_loading
from tiered_api.http.consumers.instance import ConsumerConfig, ConsumerInstance
from tiered_api.http.consumers.member import INSTANCE_ID_PREFIX, user_data_of
from tiered_api.http.consumers.subscriptions import PatternCache, Subscription, TopicCatalog
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import CONSUMER_EXISTS, CONSUMER_NOT_FOUND, HttpError

INSTANCES_MAX = 1_000
IDLE_SECONDS = 300.0
SPARE_IDLE_SECONDS = 60.0
"""An instance that was idle for this long ends when its holder needs room for another one."""
SWEEP_SECONDS = 10.0


class InstanceKey(NamedTuple):
    """The group and the name of an instance."""

    group: str
    name: str


class _FoundMember(NamedTuple):
    """A consumer as its group has it: its settings, its subscription, and the metadata that has both."""

    config: ConsumerConfig
    subscription: Subscription
    metadata: bytes


class ConsumerInstances:
    """The consumers of one listener. `close` does not leave their groups: the members stay until their sessions end."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._instances: dict[InstanceKey, ConsumerInstance] = {}
        self._lookup_locks: WeakValueDictionary[InstanceKey, asyncio.Lock] = WeakValueDictionary()
        self._topics = TopicCatalog(context.broker, PatternCache(context.run_job, context.clock))
        self._sweeper: asyncio.Task[None] | None = None
        self._holdings = context.broker.pots.watch(
            Holdings(REST_CONSUMERS, lambda: INSTANCES_MAX, lambda: len(self._instances))
        )
        context.broker.metrics.gauge("tiered_http_consumers", "REST consumers that live here.").set_function(
            lambda: float(len(self._instances))
        )

    async def create(
        self, key: InstanceKey, config: ConsumerConfig, caller: Caller, has_user: Callable[[], bool]
    ) -> ConsumerInstance:
        """Creates a consumer that belongs to the caller. It ends once `has_user` is false. Raises `HttpError` 409 if
        the group has one of that name."""
        async with self._lookup_lock(key):
            if key in self._instances or await self._find_member(key) is not None:
                raise HttpError(CONSUMER_EXISTS, f"consumer {key.name!r} already exists in group {key.group!r}")
            replaces = await self._make_room(caller.holder)
            config = replace(config, owner=str(caller.principal))
            instance = self._add(key, config, caller, replaces=replaces)
            instance.has_user = has_user
            return instance

    async def find(self, key: InstanceKey, caller: Caller, has_user: Callable[[], bool]) -> ConsumerInstance:
        """Returns a consumer of the caller by its name. Raises `HttpError` 404 if there is none, and if it belongs to
        another principal."""
        instance = self._instances.get(key)
        if instance is None or instance.is_fenced:
            async with self._lookup_lock(key):
                instance = await self._find_newest(key, caller)
        if instance is None or instance.config.owner != str(caller.principal):
            raise HttpError(CONSUMER_NOT_FOUND, f"there is no consumer {key.name!r} in group {key.group!r}")
        instance.caller, instance.has_user = caller, has_user
        instance.last_used_ns = self._context.clock.mono_ns()
        return instance

    async def delete(self, key: InstanceKey, caller: Caller, has_user: Callable[[], bool]) -> None:
        await self._end_instance(key, await self.find(key, caller, has_user))

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for instance in list(self._instances.values()):
            if instance.member is not None:
                await instance.member.stop()
        for key in list(self._instances):
            self._remove(key)

    def _lookup_lock(self, key: InstanceKey) -> asyncio.Lock:
        """Returns the lock for the look-up of one instance in its group. The coordinator may be slow, so look-ups of
        other instances do not wait."""
        lock = self._lookup_locks.get(key)
        if lock is None:
            lock = self._lookup_locks[key] = asyncio.Lock()
        return lock

    def _add(self, key: InstanceKey, config: ConsumerConfig, caller: Caller, *, replaces: bool) -> ConsumerInstance:
        """Adds a consumer. Raises `PotRefused` if its holder may not have one more, and it `replaces` none."""
        if not replaces or len(self._instances) >= INSTANCES_MAX:
            self._holdings.check(caller.holder)
        instance = self._instances[key] = ConsumerInstance(self._context, self._topics, *key, config, caller)
        self._holdings.add(instance.holder, 1)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="rest consumers")
        return instance

    def _remove(self, key: InstanceKey) -> None:
        instance = self._instances.pop(key, None)
        if instance is not None:
            self._holdings.add(instance.holder, -1)

    async def _make_room(self, holder: str) -> bool:
        """Ends the consumer that its holder uses least, if it may not have one more otherwise. Returns True if it ended
        one, whose place a new one may take."""
        oldest_ns = self._context.clock.mono_ns() - int(SPARE_IDLE_SECONDS * 1e9)
        while not self._holdings.has_room(holder):
            own = ((key, each) for key, each in self._instances.items() if each.holder == holder)
            idle = [(key, each) for key, each in own if each.last_used_ns <= oldest_ns and not each.lock.locked()]
            if not idle:
                return False
            with contextlib.suppress(HttpError):  # it was deleted meanwhile
                await self._end_instance(*min(idle, key=lambda pair: pair[1].last_used_ns))
                return True
        return False

    async def _find_newest(self, key: InstanceKey, caller: Caller) -> ConsumerInstance | None:
        """Returns a consumer as its group has it. Returns None if there is none.

        The group still has a consumer of the caller from before a restart. It has another member in place of a fenced
        one if another broker coordinated it meanwhile, and served the consumer. That one may have other topics.
        """
        instance = self._instances.get(key)
        if instance is not None and not instance.is_fenced:
            return instance
        found = await self._find_member(key)
        if found is None or found.config.owner != str(caller.principal):
            return instance
        if instance is not None:
            self._remove(key)
            await instance.detach()
        replaces = await self._make_room(caller.holder)
        instance = self._add(key, found.config, caller, replaces=replaces)
        instance.has_unknown_reads = True
        instance.join(found.subscription, known_metadata=found.metadata)
        return instance

    async def _find_member(self, key: InstanceKey) -> _FoundMember | None:
        """Returns a consumer that is a member of the group."""
        submit = self._context.broker.group_coordinators.submit
        group: DescribeGroupReply = await retry_while_loading(
            self._context, lambda: submit(key.group, DescribeGroup(key.group, any_state=True))
        )
        for member in group.members if group.code is Code.NONE else ():
            if member.instance_id == INSTANCE_ID_PREFIX + key.name:
                found = ConsumerConfig.from_user_data(user_data_of(member.metadata))
                return None if found is None else _FoundMember(*found, member.metadata)
        return None

    async def _end_instance(self, key: InstanceKey, instance: ConsumerInstance) -> None:
        async with instance.use():
            await instance.close()
            self._remove(key)

    async def _has_moved(self, key: InstanceKey) -> bool:
        """Returns True if another broker coordinates the group, and has its consumers."""
        try:
            return await find_coordinator(self._context, key.group) != self._context.broker.settings.node_id
        except Refused:
            return False

    async def _sweep(self) -> None:
        """Ends idle consumers and those of users that have gone. Drops those that another broker serves now: their
        members stay in their groups."""
        while True:
            await self._context.clock.sleep(SWEEP_SECONDS)
            oldest = self._context.clock.mono_ns() - int(IDLE_SECONDS * 1e9)
            for key, instance in list(self._instances.items()):
                if instance.lock.locked():
                    continue
                if await self._has_moved(key):
                    self._remove(key)
                    await instance.detach()
                elif instance.last_used_ns < oldest or not instance.may_stay():
                    with contextlib.suppress(HttpError):  # it was deleted meanwhile
                        await self._end_instance(key, instance)
