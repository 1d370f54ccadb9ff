"""Decoded Fetch requests, reused by later similar requests: a client repeats its request with other offsets."""

from __future__ import annotations

from typing import NamedTuple

from tiered_api.kafka.server.fetch.frames import V12_ROW, ParsedFetch, RequestedTopic

_new = tuple.__new__
_TOPICS = ParsedFetch._fields.index("topics")


BYTES_MAX = 1024
"""Longer requests are not remembered."""


class CachedRequest(NamedTuple):
    """A request for one topic: the meaning of its bytes outside of the partitions, the size of the partitions, and the
    bytes after them."""

    request: ParsedFetch
    """The request without partitions."""
    size: int
    tail: bytes


def remember_request(frame: memoryview, request: ParsedFetch) -> CachedRequest | None:
    """Returns the input of `parse_cached` for a parsed request, None if the request is not of the usual kind."""
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
    """Returns the request, whose bytes before the partitions are known. None if the rest is not as usual."""
    request, size, tail = cached
    begin = request.rows_at
    end = begin + size
    if frame[end:] != tail:
        return None
    wanted = []
    for index, epoch, offset, _, _, most, tags in V12_ROW.iter_unpack(frame[begin:end]):
        if tags:
            return None
        wanted.append((index, offset, most, epoch))
    echo, name, _ = request.topics[0]
    return _new(
        ParsedFetch, (*request[:_TOPICS], [_new(RequestedTopic, (echo, name, wanted))], *request[_TOPICS + 1 :])
    )
