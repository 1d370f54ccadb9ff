"""Fetch requests whose like was read before: a client sends the same again and again, with other offsets."""

from __future__ import annotations

from typing import NamedTuple

from tiered_api.kafka.server.fetch.frames import V12_ROW, ParsedFetch, RequestedPartition, RequestedTopic

_new = tuple.__new__
_TOPICS = ParsedFetch._fields.index("topics")


BYTES_MAX = 1024
"""Longer ones are not remembered."""


class CachedRequest(NamedTuple):
    """A request for one topic: what its bytes before and behind the partitions mean, how many the partitions take, and
    the bytes behind them."""

    request: ParsedFetch
    """Without partitions."""
    size: int
    tail: bytes


def remember_request(frame: memoryview, request: ParsedFetch) -> CachedRequest | None:
    """What `parse_cached` has to know of a request that was parsed; None when it is not of the usual kind."""
    if not request.rows_at or len(request.topics) != 1:
        return None
    echo, name, wanted = request.topics[0]
    size = len(wanted) * V12_ROW.size
    if len(frame) - size > BYTES_MAX:
        return None
    return CachedRequest(
        request._replace(topics=[RequestedTopic(echo, name, [])]), size, bytes(frame[request.rows_at + size :])
    )


def parse_cached(frame: memoryview, cached: CachedRequest) -> ParsedFetch | None:
    """The request, of which the bytes before its partitions are known; None when the rest is not as usual."""
    ask, size, tail = cached
    begin = ask.rows_at
    end = begin + size
    if frame[end:] != tail:
        return None
    wanted = []
    for index, epoch, offset, _, _, most, tags in V12_ROW.iter_unpack(frame[begin:end]):
        if tags:
            return None
        wanted.append(_new(RequestedPartition, (index, offset, most, epoch)))
    echo, name, _ = ask.topics[0]
    return _new(ParsedFetch, (*ask[:_TOPICS], [_new(RequestedTopic, (echo, name, wanted))], *ask[_TOPICS + 1 :]))
