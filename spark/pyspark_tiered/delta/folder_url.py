"""The URL of a warehouse or a table: one form for each folder, which Hadoop and this package understand alike. Pure.

Hadoop takes the path of a URL as it is, and merges slashes. Stores take a path as URLs are read: `%20` is a space. So
`spark_url` reads what a user wrote once, and its result is never decoded again. A path that the two would still read
differently is refused.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from tiered.errors import Code, Refused

FORMS = "a warehouse is a directory, file:///dir or s3://bucket/prefix"
_LIKE_URL = re.compile(r"[^/]*://|:|(?:s3a?|file|gs|hdfs|https?)//")
"""Beginnings of what was meant as a URL, and would be a directory below the working directory."""


def spark_url(place: str) -> str:
    """Returns the URL of a folder that a user named: `s3a://bucket/prefix`, or `file:` and the absolute path.

    All forms of one folder give the same URL. Raises `Refused` for a form that could mean another folder.
    """
    try:
        scheme = urlsplit(place).scheme
    except ValueError as error:
        raise Refused(Code.INVALID_REQUEST, f"{place!r} is no URL: {error}; {FORMS}") from None
    if scheme in ("s3", "s3a"):
        bucket, _, path = _after_scheme(place).partition("/")
        names = [name for name in _decode(place, path).split("/") if name]
        if not bucket:
            raise Refused(Code.INVALID_REQUEST, f"{place!r} names no bucket: {FORMS}")
        if {".", ".."} & set(names):
            raise Refused(Code.INVALID_REQUEST, f"{place!r} has a . or .. in its path, which S3 takes for a name")
        return "/".join([f"s3a://{bucket}", *names])
    if not scheme and _LIKE_URL.match(place):
        raise Refused(Code.INVALID_REQUEST, f"{place!r} names no scheme of a URL: {FORMS}")
    if scheme in ("", "file"):
        path = _file_path(place) if scheme else place
        if not path.replace("/", ""):
            raise Refused(Code.INVALID_REQUEST, f"{place!r} names no directory: {FORMS}")
        return f"file:{_absolute(path)}"
    if not _after_scheme(place).strip("/"):
        raise Refused(Code.INVALID_REQUEST, f"{place!r} names no place: {FORMS}")
    return place.rstrip("/")


def bucket_prefix(url: str) -> tuple[str, str]:
    """Returns the bucket of a folder's `s3a:` URL, and the beginning of its keys: empty, or with a slash at its end."""
    bucket, _, path = _after_scheme(url).partition("/")
    return bucket, f"{path}/" if path else ""


def _after_scheme(url: str) -> str:
    return url.partition("://")[2]


def _file_path(place: str) -> str:
    rest = place.partition(":")[2]
    host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest.removeprefix("/"))
    if host not in ("", "localhost") or not rest.startswith("/"):
        raise Refused(Code.INVALID_REQUEST, f"{place!r} names no absolute directory: {FORMS}")
    return f"/{_decode(place, path)}"


def _absolute(path: str) -> str:
    """Returns the absolute path of a directory. The file system says what `..` means: a link may be before it."""
    found = Path(path).absolute()
    return str(PurePosixPath("/", *(found.resolve() if ".." in found.parts else found).parts[1:]))


def _decode(place: str, path: str) -> str:
    if "?" in path or "#" in path:
        raise Refused(
            Code.INVALID_REQUEST, f"{place!r} has a query or a fragment, and a folder has neither (no ?, no #): {FORMS}"
        )
    try:
        found = unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise Refused(Code.INVALID_REQUEST, f"{place!r} has an escape (%) that is no UTF-8") from None
    if any(ord(each) < ord(" ") for each in found):
        raise Refused(Code.INVALID_REQUEST, f"{place!r} has a control character in its path")
    return found
