"""ApiVersions (18): the APIs and versions of this broker, for clients of any age (KIP-511).

An unknown version gets error 35 and a body of version 0, which every client can read. The header of every reply has
version 0. From version 3 on, clients send their name and version, which must look like names. The broker does not
advertise features (`transaction.version`, `group.version`), because it does not serve them.
"""

from __future__ import annotations

import re
from functools import cache
from struct import Struct

from tiered.errors import Code
from tiered_api.kafka.protocol.apis import API_VERSIONS, APIS, advertised_versions
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.headers import decode_request_header
from tiered_api.kafka.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
NAMED_FROM = 3

_HEAD = Struct(">ii")


def encode_response(frame: memoryview, version: int, correlation_id: int) -> bytes:
    """Returns the whole reply. `Malformed` if the request does not match its version."""
    code = Code.NONE
    if version not in APIS[API_VERSIONS].served_versions:
        version, code = 0, Code.UNSUPPORTED_VERSION
    elif version >= NAMED_FROM:
        request = decode(ApiVersionsRequest, version, frame, decode_request_header(frame).position)
        if not NAME.fullmatch(request.client_software_name) or not NAME.fullmatch(request.client_software_version):
            code = Code.INVALID_REQUEST
    body = _body(version, code)
    return _HEAD.pack(len(body) + 4, correlation_id) + body


@cache
def _body(version: int, code: Code) -> bytes:
    keys = [ApiVersion(*each) for each in (() if code is Code.INVALID_REQUEST else advertised_versions())]
    return encode(ApiVersionsResponse(error_code=code.number, api_keys=keys), version)
