"""The envelope of every JSON object in the bucket (manifests, metadata): it proves itself.

`{"crc":"<8 hex digits>","body":<body>}`, where the CRC-32C covers the bytes of `<body>` exactly as they stand. A person
can read it with any JSON tool, and a flipped bit, a cut or an empty object is refused before it is parsed.
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
    """The bytes of an object that holds `body`."""
    inner = orjson.dumps(body)
    return b"%s%08x%s%s}" % (_OPEN, crc32c(inner), _MIDDLE, inner)


def unseal(data: bytes, where: str) -> dict[str, Any]:
    """The body of an object; `Corrupt` names `where` when the bytes are not what `seal` wrote."""
    inner = data[_BODY_AT:-1]
    if len(inner) < 2 or data != b"%s%08x%s%s}" % (_OPEN, crc32c(inner), _MIDDLE, inner):
        raise Corrupt("object fails its check sum", where=where)
    try:
        body = orjson.loads(inner)
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"object is no JSON: {error}", where=where) from None
    if not isinstance(body, dict):
        raise Corrupt("object is no JSON object", where=where)
    return body
