"""The bugs of the mutants of REST consumers: each function turns a production function into one with the bug."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.http.consumers.instance import ConsumerInstance
from tiered_api.http.consumers.positions import ConsumerPosition
from tiered_api.http.consumers.reading import ConsumerPoll
from tiered_api.http.exchange.errors import HttpError


def forget_resets(original: Any) -> Any:
    def reset(self: ConsumerInstance, tp: TopicPartition, spot: ConsumerPosition) -> None:
        """Moves the position, which is committed with the first records only."""
        self._positions.begin(tp, spot)

    return reset


def mark_before_reply(original: Any) -> Any:
    async def poll_records(*arguments: Any) -> ConsumerPoll:
        reading: ConsumerPoll = await original(*arguments)
        reading.mark_delivered()
        return reading

    return poll_records


def mark_under_any_assignment(original: Any) -> Any:
    def mark_delivered(self: ConsumerPoll) -> None:
        self._instance.mark_read(self._positions, self._last)

    return mark_delivered


def read_on_after_rebalance(original: Any) -> Any:
    async def read_round(self: ConsumerPoll, partitions: list[TopicPartition]) -> bool:
        instance = self._instance
        if instance.assignment_version != self._assignment_version and partitions:
            with suppress(Refused, HttpError, Unavailable, Corrupt):
                await self._read(instance.rotate_partitions(partitions)[0])
            return False
        return bool(await original(self, partitions))

    return read_round
