"""The envelope of every JSON object in the bucket (manifests, metadata), with a CRC.

`{"crc":"<8 hex digits>","body":<body>}`, where the CRC-32C covers exactly the bytes of `<body>`. A person can read it
with any JSON tool. A flipped bit, a truncated object or an empty object is refused before it is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tiered.errors import Corrupt
from tiered.records.native import crc32c

_OPEN = b'{"crc":"'
_MIDDLE = b'","body":'
_BODY_AT = len(_OPEN) + 8 + len(_MIDDLE)


def seal(body: Mapping[str, Any]) -> bytes:
    """Returns the bytes of an object with `body`."""
    inner = orjson.dumps(body)
    return b"%s%08x%s%s}" % (_OPEN, crc32c(inner), _MIDDLE, inner)


def unseal(data: bytes, where: str) -> dict[str, Any]:
    """Returns the body of an object. Raises `Corrupt` with `where` if the bytes are not an output of `seal`."""
    inner = data[_BODY_AT:-1]
    if len(inner) < 2 or data != b"%s%08x%s%s}" % (_OPEN, crc32c(inner), _MIDDLE, inner):
        raise Corrupt("object has a wrong CRC", where=where)
    try:
        body = orjson.loads(inner)
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"object is not JSON: {error}", where=where) from None
    if not isinstance(body, dict):
        raise Corrupt("object is not a JSON object", where=where)
    return body
