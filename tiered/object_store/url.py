"""Opens the store that a URL names."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from tiered.errors import Code, Refused
from tiered.object_store.directory import DirectoryStore
from tiered.object_store.memory import MemoryStore
from tiered.ports import Clock, ObjectStore, Rng

FORMS = "file:///dir, s3://bucket/prefix or memory://"


def open_store(url: str, clock: Clock, rng: Rng, *, create: bool = True) -> ObjectStore:
    """Opens `file:///dir`, `s3://bucket/prefix` (`s3a` means the same) or `memory://`. Raises `Refused` for anything
    else.

    A missing directory is created, or refused if `create` is false: for code that only reads.
    """
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise Refused(Code.INVALID_CONFIG, f"store {url!r} has a query or fragment; use {FORMS}")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or parts.path in ("", "/"):
            raise Refused(Code.INVALID_CONFIG, f"store {url!r} names no absolute directory; use file:///dir")
        return DirectoryStore(unquote(parts.path), clock, rng, create=create)
    if parts.scheme in ("s3", "s3a"):
        if not parts.netloc:
            raise Refused(Code.INVALID_CONFIG, f"store {url!r} names no bucket; use s3://bucket/prefix")
        # Imported late: boto3 costs a fifth of a second and 35 MB.
        from tiered.object_store.s3 import S3Store

        return S3Store(parts.netloc, unquote(parts.path).strip("/"), clock, rng)
    if url == "memory://":
        return MemoryStore(clock)
    raise Refused(Code.INVALID_CONFIG, f"store {url!r} is of an unknown kind; use {FORMS}")
