"""ApiVersions (18): the APIs and versions of this broker, for clients of any age (KIP-511).

An unknown version gets error 35 and a body of version 0, which every client can read. The header of every reply has
version 0. From version 3 on, clients send their name and version, which must look like names. They get the features of
the cluster (KIP-584) with the levels that are set: `transaction.version` and `tiered.metadata.version`. A level of 0 is
no feature in force. Clients of version 3 refuse a feature whose lowest level is 0, so they see only the level that is
set (KIP-1022).
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct

from tiered.errors import Code
from tiered.metadata.features import FEATURES, find_level
from tiered.metadata.image import Image
from tiered_api.kafka.protocol.apis import API_VERSIONS, APIS, advertised_versions
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.headers import decode_request_header
from tiered_api.kafka.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
NAMED_FROM = FEATURES_FROM = 3
LEVEL_0_FROM = 4

_HEAD = Struct(">ii")


def encode_response(frame: memoryview, version: int, correlation_id: int, image: Image) -> bytes:
    """Returns the whole reply. `Malformed` if the request does not match its version."""
    code = Code.NONE
    if version not in APIS[API_VERSIONS].served_versions:
        version, code = 0, Code.UNSUPPORTED_VERSION
    elif version >= NAMED_FROM:
        request = decode(ApiVersionsRequest, version, frame, decode_request_header(frame).position)
        if not NAME.fullmatch(request.client_software_name) or not NAME.fullmatch(request.client_software_version):
            code = Code.INVALID_REQUEST
    levels = tuple(find_level(image.features, name) for name in FEATURES)
    body = _encode_body(version, code, levels, image.features_epoch)
    return _HEAD.pack(len(body) + 4, correlation_id) + body


@lru_cache(maxsize=64)
def _encode_body(version: int, code: Code, levels: tuple[int, ...], features_epoch: int) -> bytes:
    if code is Code.INVALID_REQUEST:
        return encode(ApiVersionsResponse(error_code=code.number), version)
    response = ApiVersionsResponse(code.number, [ApiVersion(*each) for each in advertised_versions()])
    if version >= FEATURES_FROM:
        response.supported_features = [
            SupportedFeatureKey(name, each.lowest, each.highest)
            for name, each in FEATURES.items()
            if version >= LEVEL_0_FROM or each.lowest > 0
        ]
        response.finalized_features_epoch = features_epoch
        response.finalized_features = [
            FinalizedFeatureKey(name, level, level) for name, level in zip(FEATURES, levels, strict=True) if level
        ]
    return encode(response, version)
