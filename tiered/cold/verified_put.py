"""The put of a segment object that is checked at once: its size and its last bytes are read back. Keeps I20."""

from __future__ import annotations

from tiered.errors import Unavailable
from tiered.ports import Buffer, FileSlice, NotFound, ObjectStore, Ok, describe_failed_put


async def put_verified(store: ObjectStore, key: str, log_part: Buffer | FileSlice, tail: bytes) -> int:
    """Puts the log part and the bytes after it as one object. Returns its size.

    Raises `Unavailable` if the put failed or other bytes are read back; the object may be in the bucket.
    """
    result = await store.upload(key, [log_part, tail])
    if not isinstance(result, Ok):
        raise Unavailable(f"upload of {key} failed: {describe_failed_put(result)}")
    log_bytes = log_part.length if isinstance(log_part, FileSlice) else len(log_part)
    got = await store.get(key, log_bytes, len(tail))
    if isinstance(got, NotFound) or got.size != log_bytes + len(tail) or got.data != tail:
        raise Unavailable(f"{key} reads back with other bytes than were uploaded")
    return log_bytes + len(tail)
