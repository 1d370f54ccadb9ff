"""Fetch requests whose like was read before: a client sends the same again and again, with other offsets."""

from __future__ import annotations

from typing import NamedTuple

from tiered_api.kafka.server.fetch.frames import V12_ROW, FetchAsk, Topic, Wanted

_new = tuple.__new__
_TOPICS = FetchAsk._fields.index("topics")


BYTES_MAX = 1024
"""Longer ones are not remembered."""


class Head(NamedTuple):
    """A request for one topic: what its bytes before and behind the partitions mean, how many the partitions take, and
    the bytes behind them."""

    ask: FetchAsk
    """Without partitions."""
    size: int
    tail: bytes


def learn(frame: memoryview, ask: FetchAsk) -> Head | None:
    """What `parse_known` has to know of a request that was parsed; None when it is not of the usual kind."""
    if not ask.rows or len(ask.topics) != 1:
        return None
    echo, name, wanted = ask.topics[0]
    size = len(wanted) * V12_ROW.size
    if len(frame) - size > BYTES_MAX:
        return None
    return Head(ask._replace(topics=[Topic(echo, name, [])]), size, bytes(frame[ask.rows + size :]))


def parse_known(frame: memoryview, head: Head) -> FetchAsk | None:
    """The request, of which the bytes before its partitions are known; None when the rest is not as usual."""
    ask, size, tail = head
    begin = ask.rows
    end = begin + size
    if frame[end:] != tail:
        return None
    wanted = []
    for index, epoch, offset, _, _, most, tags in V12_ROW.iter_unpack(frame[begin:end]):
        if tags:
            return None
        wanted.append(_new(Wanted, (index, offset, most, epoch)))
    echo, name, _ = ask.topics[0]
    return _new(FetchAsk, (*ask[:_TOPICS], [_new(Topic, (echo, name, wanted))], *ask[_TOPICS + 1 :]))
