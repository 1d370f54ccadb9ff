"""What stands before a message: the headers of requests (version 1, or 2 with tagged fields) and of responses (0 or 1).

ApiVersions is answered with header 0 always: its client may not yet know what the broker speaks. Request header 0
belonged to ControlledShutdown, which is not served.
"""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple

from tiered_api.kafka.protocol.apis import API_VERSIONS, Api, find_api
from tiered_api.kafka.protocol.primitives import Malformed, skip_tags

_FIXED = Struct(">hhih")
_ANSWER = Struct(">i")
_ANSWER_TAGGED = Struct(">ix")


class RequestHeader(NamedTuple):
    """Who asks for what. `api` is None when key or version are not served; the body begins at `position`."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    position: int
    api: Api | None


def decode_request_header(frame: memoryview | bytes, position: int = 0) -> RequestHeader:
    """Reads the header of a request. What is not served has no known body, so its `position` means nothing."""
    try:
        key, version, correlation_id, size = _FIXED.unpack_from(frame, position)
        position += _FIXED.size
        api = find_api(key, version)
        client_id = None
        # The client's id kept its two bytes of length when headers became flexible.
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
    """The header of an answer."""
    api = find_api(key, version)
    if key == API_VERSIONS or api is None or not api.is_flexible(version):
        return _ANSWER.pack(correlation_id)
    return _ANSWER_TAGGED.pack(correlation_id)


def encode_request_header(api: Api, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Writes the header of a request."""
    name = b"" if client_id is None else client_id.encode()
    fixed = _FIXED.pack(api.key, version, correlation_id, -1 if client_id is None else len(name))
    return fixed + name + (b"\0" if api.is_flexible(version) else b"")


def decode_response_header(api: Api, version: int, frame: memoryview | bytes, position: int = 0) -> tuple[int, int]:
    """Reads the header of an answer: its correlation id, and where the body begins."""
    try:
        (correlation_id,) = _ANSWER.unpack_from(frame, position)
        position += _ANSWER.size
        if api.key != API_VERSIONS and api.is_flexible(version):
            position = skip_tags(frame, position, len(frame))
    except (error, IndexError) as problem:
        raise Malformed(f"response header: {problem}") from None
    return correlation_id, position
