"""Opens the store that a URL names."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from tiered.errors import Code, Refused
from tiered.object_store.directory import DirectoryStore
from tiered.object_store.encrypted import EncryptedStore
from tiered.object_store.key_file import SETTING, KeyFile
from tiered.object_store.memory import MemoryStore
from tiered.ports import Clock, ObjectStore, Rng

FORMS = "file:///dir, s3://bucket/prefix or memory://"
KEYS = "keys"
"""The one parameter of a URL: the file with the key ring of an encrypted bucket."""


def open_store(url: str, clock: Clock, rng: Rng, *, create: bool = True, keys_file: str = "") -> EncryptedStore:
    """Opens `file:///dir`, `s3://bucket/prefix` (`s3a` means the same) or `memory://`. Raises `Refused` for anything
    else.

    `?keys=FILE` after it, or `keys_file`, names the file with the keys that encrypt the objects. A missing directory is
    created, or refused if `create` is false: for code that only reads.
    """
    place, in_url = _split_keys(url)
    if keys_file and in_url:
        raise Refused(Code.INVALID_CONFIG, f"store {url!r} and {SETTING}={keys_file} both name a key file: give one")
    path = keys_file or in_url
    key_file = KeyFile(path, clock) if path else None
    return EncryptedStore(_open_plain(place, clock, rng, create=create), key_file)


def _split_keys(url: str) -> tuple[str, str]:
    """Returns the URL without its parameter, and the file that the parameter names."""
    place, mark, query = url.partition("?")
    if not mark:
        return url, ""
    name, _, path = query.partition("=")
    if name != KEYS or not path or "#" in path:
        raise Refused(Code.INVALID_CONFIG, f"store {url!r} has another query than ?{KEYS}=FILE; use {FORMS}")
    return place, unquote(path)


def _open_plain(url: str, clock: Clock, rng: Rng, *, create: bool) -> ObjectStore:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Refused(Code.INVALID_CONFIG, f"store {url!r} is no URL: {error}; use {FORMS}") from None
    if parts.fragment:
        raise Refused(Code.INVALID_CONFIG, f"store {url!r} has a fragment; use {FORMS}")
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
