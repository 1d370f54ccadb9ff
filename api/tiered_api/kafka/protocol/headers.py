"""The headers before a message: of requests (version 1, or 2 with tagged fields) and of responses (0 or 1).

An ApiVersions response always has header 0: its client may not know yet which versions the broker supports. Request
header 0 belonged to ControlledShutdown, which is not supported.
"""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple

from tiered_api.kafka.protocol.apis import API_VERSIONS, Api, find_api
from tiered_api.kafka.protocol.primitives import Malformed, skip_tags

_FIXED = Struct(">hhih")
_RESPONSE = Struct(">i")
_RESPONSE_TAGGED = Struct(">ix")


class RequestHeader(NamedTuple):
    """The header of a request; the body begins at `position`. `api` is None if the key or version is not served."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    position: int
    api: Api | None


def decode_request_header(frame: memoryview | bytes, position: int = 0) -> RequestHeader:
    """Returns the header of a request. If its API is not served, the format is unknown and `position` means nothing."""
    try:
        key, version, correlation_id, size = _FIXED.unpack_from(frame, position)
        position += _FIXED.size
        api = find_api(key, version)
        client_id = None
        # The length of the client id stayed two bytes when headers became flexible.
        if size >= 0:
            if position + size > len(frame):
                raise Malformed("a client id that is longer than its frame")
            client_id = str(frame[position : position + size], "utf-8")
            position += size
        if api is not None and api.is_flexible(version):
            position = skip_tags(frame, position, len(frame))
    except (error, IndexError, UnicodeDecodeError) as problem:
        raise Malformed(f"request header: {problem}") from None
    return RequestHeader(key, version, correlation_id, client_id, position, api)


def encode_response_header(key: int, version: int, correlation_id: int) -> bytes:
    """Returns the header of a response."""
    api = find_api(key, version)
    if key == API_VERSIONS or api is None or not api.is_flexible(version):
        return _RESPONSE.pack(correlation_id)
    return _RESPONSE_TAGGED.pack(correlation_id)


def encode_request_header(api: Api, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Returns the header of a request."""
    name = b"" if client_id is None else client_id.encode()
    fixed = _FIXED.pack(api.key, version, correlation_id, -1 if client_id is None else len(name))
    return fixed + name + (b"\0" if api.is_flexible(version) else b"")


def decode_response_header(api: Api, version: int, frame: memoryview | bytes, position: int = 0) -> tuple[int, int]:
    """Returns the correlation id of a response, and the position of its body."""
    try:
        (correlation_id,) = _RESPONSE.unpack_from(frame, position)
        position += _RESPONSE.size
        if api.key != API_VERSIONS and api.is_flexible(version):
            position = skip_tags(frame, position, len(frame))
    except (error, IndexError) as problem:
        raise Malformed(f"response header: {problem}") from None
    return correlation_id, position
