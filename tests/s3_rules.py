"""The behaviour of S3 as far as our clients use it: objects, conditions, ranges, listings, multipart uploads.

Nothing here waits, so that each request is one step and the whole is linearizable.
"""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

BUCKET = "bucket"
CHECKSUMS = ("x-amz-checksum-crc32", "x-amz-checksum-crc32c", "x-amz-checksum-crc64nvme", "x-amz-checksum-sha256")


class Stored(NamedTuple):
    """One object: body, ETag, time of modification (seconds), and its checksum header."""

    body: bytes
    etag: str
    modified: float
    checksum: dict[str, str]


@dataclass
class S3Rules:
    """Buckets by name, each with its objects by key; parts of unfinished uploads by their id."""

    buckets: dict[str, dict[str, Stored]] = field(default_factory=lambda: {BUCKET: {}})
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    begun: dict[str, tuple[str, str, float]] = field(default_factory=dict)
    """Bucket, key and time (seconds) of the begin of each unfinished upload."""
    ignore_conditions: bool = False
    """Behave like a store that replies 200 and overwrites."""
    sparse_listings: bool = False
    """Behave like a store that returns pages with few or no keys, and continues the listing."""
    folder_order: bool = False
    """Behave like a store that lists a folder after the other: `a/1` comes before `a-b` (SeaweedFS)."""
    whole_checksums: bool = False
    """Behave like a store that sends the checksum of the whole object with a range (gofakes3 1.2)."""
    deletes_need_md5: bool = False
    """Behave like a store that refuses DeleteObjects without a Content-MD5, and any newer checksum."""
    puts_need_checksum: bool = False
    """Behave like a bucket with a default retention (Object Lock)."""
    denied_deletes: str = ""
    """Behave like a store that replies 200 to DeleteObjects, with this code for each key."""
    access_keys: frozenset[str] | None = None
    """The access keys that the store knows; None means all."""

    def answer(self, request: web.Request, bucket: str, key: str, body: bytes, stale_seconds: float) -> web.Response:
        """Returns the reply; a listing leaves out objects that are younger than `stale_seconds`."""
        query = request.query
        if not key and request.method == "PUT":
            self.buckets.setdefault(bucket, {})
            return web.Response()
        objects = self.buckets.get(bucket)
        if objects is None:
            return error_reply(404, "NoSuchBucket")
        if refusal := self._refuse_login(request):
            return refusal
        signed = request.headers.get("x-amz-content-sha256", "")
        if len(signed) == 64 and signed != hashlib.sha256(body).hexdigest():
            return error_reply(400, "XAmzContentSHA256Mismatch")
        if refusal := self._refuse_checksum(request, key, body):
            return refusal
        match request.method:
            case "GET" if not key and "uploads" in query:
                return self._list_uploads(bucket, query)
            case "GET" if not key:
                return _listing(objects, bucket, query, stale_seconds, self.sparse_listings, self.folder_order)
            case "HEAD" if not key:
                return web.Response()
            case "GET" | "HEAD":
                return _read(objects, key, request.headers, self.whole_checksums)
            case "POST" if "delete" in query:
                return _deny_deletes(body, self.denied_deletes) if self.denied_deletes else _delete_many(objects, body)
            case "POST" if "uploads" in query:
                upload = uuid.uuid4().hex
                self.uploads[upload] = {}
                self.begun[upload] = (bucket, key, time.time())
                return _xml(
                    f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
                )
            case "PUT" if "uploadId" in query:
                return self._part(query["uploadId"], int(query["partNumber"]), body)
            case "POST" if "uploadId" in query:
                return self._complete(objects, key, query["uploadId"], body, request.headers)
            case "DELETE" if "uploadId" in query:
                self.begun.pop(query["uploadId"], None)
                known = self.uploads.pop(query["uploadId"], None) is not None
                return web.Response(status=204) if known else error_reply(404, "NoSuchUpload")
            case "PUT":
                return self._put(objects, key, body, request.headers)
            case "DELETE":
                objects.pop(key, None)
                return web.Response(status=204)
        return error_reply(405, "MethodNotAllowed")

    def reset(self) -> None:
        """Makes the store an ordinary one again. Its objects stay."""
        ordinary = S3Rules(self.buckets, self.uploads, self.begun)
        self.__dict__.update(ordinary.__dict__)

    def _refuse_login(self, request: web.Request) -> web.Response | None:
        if self.access_keys is None:
            return None
        _, _, credential = request.headers.get("Authorization", "").partition("Credential=")
        return None if credential.partition("/")[0] in self.access_keys else error_reply(403, "InvalidAccessKeyId")

    def _refuse_checksum(self, request: web.Request, key: str, body: bytes) -> web.Response | None:
        md5 = request.headers.get("Content-MD5", "")
        newer = any(name.lower().startswith("x-amz-checksum") for name in request.headers)
        if md5 and md5 != base64.b64encode(hashlib.md5(body).digest()).decode():
            return error_reply(400, "BadDigest")
        if self.deletes_need_md5 and request.method == "POST" and "delete" in request.query:
            if newer:
                return error_reply(501, "NotImplemented")
            return None if md5 else error_reply(400, "MissingContentMD5")
        if self.puts_need_checksum and request.method == "PUT" and key and not md5 and not newer:
            why = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests"
            return error_reply(400, "InvalidRequest", why)
        return None

    def _put(self, objects: dict[str, Stored], key: str, body: bytes, headers: Any) -> web.Response:
        if refusal := self._refusal(objects.get(key), headers):
            return refusal
        if source := headers.get("x-amz-copy-source"):
            from_bucket, _, from_key = unquote(source).lstrip("/").partition("/")
            found = self.buckets.get(from_bucket, {}).get(from_key)
            if found is None:
                return error_reply(404, "NoSuchKey")
            body = found.body
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        objects[key] = Stored(body, etag, time.time(), {name: headers[name] for name in CHECKSUMS if name in headers})
        if source:
            return _xml(
                f"<CopyObjectResult><ETag>{etag}</ETag><LastModified>{_iso(time.time())}</LastModified></CopyObjectResult>"
            )
        return web.Response(headers={"ETag": etag})

    def _part(self, upload: str, number: int, body: bytes) -> web.Response:
        if upload not in self.uploads:
            return error_reply(404, "NoSuchUpload")
        self.uploads[upload][number] = body
        return web.Response(headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

    def _list_uploads(self, bucket: str, query: Any) -> web.Response:
        marker, limit = (query.get("key-marker", ""), query.get("upload-id-marker", "")), int(query["max-uploads"])
        listed = sorted(
            (key, upload, begun)
            for upload, (of, key, begun) in self.begun.items()
            if of == bucket and key.startswith(query.get("prefix", "")) and (key, upload) > marker
        )
        page = listed[:limit]
        more = len(listed) > limit
        next_marker = f"<NextKeyMarker>{escape(page[-1][0])}</NextKeyMarker>" if more else ""
        next_marker += f"<NextUploadIdMarker>{page[-1][1]}</NextUploadIdMarker>" if more else ""
        entries = "".join(
            f"<Upload><Key>{escape(key)}</Key><UploadId>{upload}</UploadId><Initiated>{_iso(begun)}</Initiated></Upload>"
            for key, upload, begun in page
        )
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        return _xml(f"<ListMultipartUploadsResult>{truncated}{next_marker}{entries}</ListMultipartUploadsResult>")

    def _complete(self, objects: dict[str, Stored], key: str, upload: str, body: bytes, headers: Any) -> web.Response:
        parts = self.uploads.get(upload)
        if parts is None:
            return error_reply(404, "NoSuchUpload")
        if refusal := self._refusal(objects.get(key), headers):
            return refusal
        numbers = [
            int(element.text or 0)
            for element in ElementTree.fromstring(body).iter()
            if element.tag.endswith("PartNumber")
        ]
        if any(number not in parts for number in numbers):
            return error_reply(400, "InvalidPart")
        whole = b"".join(parts[number] for number in numbers)
        etag = f'"{hashlib.md5(whole).hexdigest()}-{len(numbers)}"'
        objects[key] = Stored(whole, etag, time.time(), {})
        del self.uploads[upload], self.begun[upload]
        return _xml(f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>")

    def _refusal(self, found: Stored | None, headers: Any) -> web.Response | None:
        if self.ignore_conditions:
            return None
        if headers.get("If-None-Match") == "*" and found:
            return error_reply(412, "PreconditionFailed")
        if wanted := headers.get("If-Match"):
            if found is None:
                return error_reply(404, "NoSuchKey")
            if found.etag.strip('"') != wanted.strip('"'):
                return error_reply(412, "PreconditionFailed")
        return None


def _read(objects: dict[str, Stored], key: str, headers: Any, whole_checksums: bool) -> web.Response:
    found = objects.get(key)
    if found is None:
        return error_reply(404, "NoSuchKey")
    described = {"ETag": found.etag, "Last-Modified": _http_date(found.modified), "Accept-Ranges": "bytes"}
    wanted = headers.get("Range", "")
    if not wanted.startswith("bytes="):
        return web.Response(body=found.body, headers=described | found.checksum)
    first, _, last = wanted[6:].partition("-")
    size = len(found.body)
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= size:
        return error_reply(416, "InvalidRange")
    if whole_checksums:
        described["x-amz-checksum-crc32"] = base64.b64encode(zlib.crc32(found.body).to_bytes(4, "big")).decode()
    return web.Response(
        status=206, body=found.body[start:end], headers=described | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
    )


def by_folder(key: str) -> list[str]:
    """Returns the place of a key in the order of a store that lists a folder after the other."""
    return key.split("/")


def _listing(
    objects: dict[str, Stored], bucket: str, query: Any, stale_seconds: float, sparse: bool, folder_order: bool
) -> web.Response:
    place: Callable[[str], Any] = by_folder if folder_order else str
    prefix, delimiter, limit = query.get("prefix", ""), query.get("delimiter", ""), int(query.get("max-keys", "1000"))
    goes_on = query.get("continuation-token", "")
    after = goes_on[1:] or query.get("start-after") or query.get("marker") or ""
    if sparse:
        limit = min(limit, 2 if goes_on else 0)
    newest = time.time() - stale_seconds
    entries: dict[str, str] = {}
    for key in sorted(objects, key=place):
        if (
            not key.startswith(prefix)
            or (after and place(key) <= place(after))
            or (stale_seconds and objects[key].modified > newest)
        ):
            continue
        folder = prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter if delimiter else ""
        if folder and delimiter in key[len(prefix) :]:
            if not (after and after.startswith(folder)):
                entries[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
        else:
            found = objects[key]
            entries[key] = (
                f"<Contents><Key>{escape(key)}</Key><LastModified>{_iso(found.modified)}</LastModified>"
                f"<ETag>{escape(found.etag)}</ETag><Size>{len(found.body)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            )
        if len(entries) > limit:
            break
    names = list(entries)[:limit]
    more = len(entries) > limit
    last = names[-1] if names else after
    token = f"<NextContinuationToken>~{escape(last)}</NextContinuationToken>" if more else ""
    return _xml(
        f"<ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(names)}</KeyCount>"
        f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        + "".join(entries[name] for name in names)
        + "</ListBucketResult>"
    )


def _delete_many(objects: dict[str, Stored], body: bytes) -> web.Response:
    for element in ElementTree.fromstring(body).iter():
        if element.tag.endswith("Key"):
            objects.pop(element.text or "", None)
    return _xml("<DeleteResult></DeleteResult>")


def _deny_deletes(body: bytes, code: str) -> web.Response:
    keys = [element.text or "" for element in ElementTree.fromstring(body).iter() if element.tag.endswith("Key")]
    errors = (f"<Error><Key>{escape(key)}</Key><Code>{code}</Code><Message>denied</Message></Error>" for key in keys)
    return _xml(f"<DeleteResult>{''.join(errors)}</DeleteResult>")


def _xml(text: str) -> web.Response:
    return web.Response(body=b'<?xml version="1.0" encoding="UTF-8"?>' + text.encode(), content_type="application/xml")


def error_reply(status: int, code: str, why: str = "") -> web.Response:
    response = _xml(f"<Error><Code>{code}</Code><Message>{why or code}</Message></Error>")
    response.set_status(status)
    return response


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _http_date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
