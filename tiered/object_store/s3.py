"""The ObjectStore port on S3 and compatible stores, through boto3.

The client for conditional puts never retries by itself (`s3_clients.py`). There are three thread pools: uploads and
ranged reads cannot starve metadata, and reads that hang cannot starve conditional puts.

botocore's own checksums are off: some stores refuse the trailer that carries them, and some send the checksum of the
whole object with a range. Our CRC-32C covers all bytes that are read. The SHA-256 in the signature covers all bytes
that are sent, so the store refuses bytes that changed in transit. Puts and deletes also carry a Content-MD5, which
every S3 has known from its first day. Some stores refuse deletes without it, and a bucket with a default retention
refuses puts. Uploads carry it after the first such refusal.

A conditional put raises `Unavailable` only if the store refused it and nothing was written. Every unclear outcome is
`Unknown`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from tiered.errors import Code, Refused, Unavailable, first_cause
from tiered.object_store.s3_clients import S3Clients
from tiered.object_store.s3_refusals import is_login_refusal, is_refused_key, may_lack_checksum
from tiered.object_store.upload_body import BodyWindow, UploadBody
from tiered.ports import (
    Buffer,
    Clock,
    ConditionFailed,
    Conflict,
    FileSlice,
    GetResult,
    ListedObject,
    NotFound,
    Ok,
    PutResult,
    Rng,
    Unknown,
)
from tiered.subtask import run_subtask
from tiered.thread_pool import ThreadPool

log = logging.getLogger(__name__)

CONDITIONAL_SECONDS = 10.0
SECONDS = 30.0
BULK_SECONDS = 60.0
BULK_BYTES_PER_SECOND = 1 << 20
SINGLE_PUT_BYTES = 512 << 20
PART_BYTES = 64 << 20
PARTS_MAX = 10_000
PARTS_AT_ONCE = 4
CONDITIONAL_WORKERS = 8
META_WORKERS = 8
BULK_WORKERS = 32
READ_TRIES = 4
BACKOFF_SECONDS = 0.1
DELETE_KEYS = 1000
LIST_KEYS = 1000
HASHED_BYTES = 1 << 20
OLD_UPLOAD_SECONDS = 24 * 3600
UPLOAD_PAGES = 5
ABORTS_MAX = 100
"""Limit on the uploads that one call ends."""
EMPTY_PAGES_MAX = 1000
"""Limit on consecutive pages without a key: after it a list fails."""
MALFORMED_REPLY = (ResponseParserError, KeyError, ValueError)
"""Errors from a reply that no store wrote: a login page, a proxy, an empty 200."""
CONNECTION_ERRORS = (HTTPClientError, BotoConnectionError, IncompleteReadError, ChecksumError, FlexibleChecksumError)
TRANSIENT = (408, 425, 429)
TRANSIENT_CODES = ("RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests")
T = TypeVar("T")

PartTags = list[dict[str, Any]]


class Page(NamedTuple):
    """A part of a list reply. `next_token` is the token of the next page, empty at the end."""

    keys: Sequence[ListedObject]
    next_token: str


class UploadPage(NamedTuple):
    """A part of the list of uploads: those that are old, and the arguments for the next page, empty at the end."""

    old: Sequence[dict[str, str]]
    next_marker: dict[str, str]


class S3Store:
    """Objects below `prefix` of a bucket."""

    def __init__(self, bucket: str, prefix: str, clock: Clock, rng: Rng, *, part_bytes: int = PART_BYTES) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._clock = clock
        self._random = rng.stream("s3-backoff")
        self._part_bytes = part_bytes
        self._single_put_bytes = min(SINGLE_PUT_BYTES, part_bytes * 8)
        self._uploads_need_md5 = False
        self._own_uploads: set[str] = set()
        try:
            self._clients = S3Clients(self.url, clock, META_WORKERS + BULK_WORKERS, CONDITIONAL_WORKERS)
        except (BotoCoreError, ValueError) as error:  # an endpoint that is not a URL, or a missing profile
            raise Refused(Code.INVALID_CONFIG, f"cannot use the store {self.url}: {_describe(error)}") from None
        self._conditional = ThreadPool("s3-conditional", CONDITIONAL_WORKERS)
        self._meta = ThreadPool("s3-meta", META_WORKERS)
        self._bulk = ThreadPool("s3-bulk", BULK_WORKERS)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        if length == 0:
            return await self._head(key)
        ranged = start > 0 or length is not None
        workers, seconds = (self._bulk, _bulk_seconds(length or 0)) if ranged else (self._meta, SECONDS)
        why = ""
        for attempt in range(1, READ_TRIES + 1):
            got = await self._request("get", key, workers, seconds, lambda: self._get(key, start, length, ranged))
            if not isinstance(got, Unknown):
                return got
            why = got.why
            log.warning("response body was cut short store=%s key=%s attempt=%d error=%s", self.url, key, attempt, why)
            await self._clock.sleep(self._random.random() * BACKOFF_SECONDS * 2**attempt)
        raise Unavailable(f"get failed store={self.url} key={key} error=the body breaks off: {why}")

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        arguments: dict[str, Any] = self._object_arguments(key) | {"Body": bytes(data)}
        if if_absent:
            arguments["IfNoneMatch"] = "*"
        if if_match is not None:
            arguments["IfMatch"] = if_match
        if if_absent or if_match is not None:
            workers, seconds = self._conditional, CONDITIONAL_SECONDS
            send = self._clients.call_once
            return await self._run_put(key, workers, seconds, lambda: self._put(send, arguments))
        return await self._run_put(key, self._meta, SECONDS, lambda: self._put(self._clients.call, arguments))

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        whole = UploadBody(parts)
        if whole.size > self._single_put_bytes:
            return await self._upload_in_parts(key, whole)
        return await self._run_put(
            key, self._bulk, _bulk_seconds(whole.size), lambda: self._put_body(key, whole.window(0, whole.size))
        )

    async def list(self, prefix: str, after: str = "", limit: int = LIST_KEYS) -> list[ListedObject]:
        found: list[ListedObject] = []
        token, empty = "", 0
        while len(found) < limit:
            wanted = min(LIST_KEYS, limit - len(found))
            page = await self._request(
                "list", prefix, self._meta, SECONDS,
                lambda: self._list_page(prefix, after, token, wanted),  # noqa: B023
            )  # fmt: skip
            found += page.keys
            if not page.next_token:
                break
            token, empty = page.next_token, 0 if page.keys else empty + 1
            if empty >= EMPTY_PAGES_MAX:
                raise Unavailable(f"list failed store={self.url} key={prefix} error={empty} pages gave no key")
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), DELETE_KEYS):
            some = keys[at : at + DELETE_KEYS]
            await self._request("delete", some[0], self._meta, SECONDS, lambda: self._delete(some))  # noqa: B023

    async def end_old_uploads(self, prefix: str) -> int:
        ended = 0
        marker: dict[str, str] = {}
        for _ in range(UPLOAD_PAGES):
            try:
                page = await self._request(
                    "list uploads", prefix, self._meta, SECONDS,
                    lambda: self._list_uploads(prefix, marker),  # noqa: B023
                )  # fmt: skip
                for upload in page.old[: ABORTS_MAX - ended]:
                    await self._request(
                        "abort", upload["Key"], self._meta, SECONDS,
                        lambda: self._abort_upload(upload),  # noqa: B023
                    )  # fmt: skip
                    ended += 1
            except Unavailable as error:
                if not error.refused and not error.final:
                    raise
                log.info("uploads that were killed stay, the bucket's lifecycle rule has to end them error=%s", error)
                break
            if not page.next_marker or ended >= ABORTS_MAX:
                break
            marker = page.next_marker
        if ended:
            log.info("uploads of killed processes were ended store=%s prefix=%s uploads=%d", self.url, prefix, ended)
        return ended

    async def close(self) -> None:
        for workers in (self._conditional, self._meta, self._bulk):
            workers.close()
        self._clients.close()

    # -- outcomes -----------------------------------------------------------------------------------------------------

    async def _request(self, verb: str, key: str, workers: ThreadPool, seconds: float, call: Callable[[], T]) -> T:
        """Runs a request in a thread. A failure raises `Unavailable`, final if the store will never support the
        request."""
        try:
            return await workers.run(call, seconds)
        except TimeoutError:
            raise Unavailable(f"{verb} failed store={self.url} key={key} error=no reply within {seconds:g} s") from None
        except (BotoCoreError, ClientError, *MALFORMED_REPLY) as error:
            raise self._unavailable(f"{verb} failed store={self.url} key={key}", error) from None

    async def _run_put(self, key: str, workers: ThreadPool, seconds: float, call: Callable[[], PutResult]) -> PutResult:
        """Runs a put in a thread. Only a definite reply decides: any put that may be applied is `Unknown`."""
        try:
            return await workers.run(call, seconds)
        except TimeoutError:
            return Unknown(f"no reply within {seconds:g} s")
        except ClientError as error:
            match _status(error):
                case 412:
                    return ConditionFailed()
                case 409:
                    return Conflict()
                case 404 if _code(error) == "NoSuchKey":  # some stores say so when `if_match` finds nothing
                    return ConditionFailed()
                case 400 | 401 | 403 | 404 | 405 | 501:
                    raise self._unavailable(f"put failed store={self.url} key={key}", error) from None
                case _:
                    return Unknown(_describe(error))
        except (BotoCoreError, *MALFORMED_REPLY) as error:
            return Unknown(_describe(error))

    def _unavailable(self, what: str, error: Exception) -> Unavailable:
        status = _status(error) if isinstance(error, ClientError) else 0
        why = f"{what} error={_describe(error)}"
        way_on = self._clients.describe_new_keys() if is_login_refusal(status, _code(error)) else ""
        if way_on:
            why += f" ({way_on})"
        return Unavailable(
            why, final=status in (405, 501), refused=_is_refusal(error, status), login_refused=bool(way_on)
        )

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _get(self, key: str, start: int, length: int | None, ranged: bool) -> GetResult | NotFound | Unknown:
        """Gets an object or a range. Returns `Unknown` if the body was cut short."""
        arguments: dict[str, Any] = self._object_arguments(key)
        if ranged:
            arguments["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
        try:
            response = self._clients.call(lambda client: client.get_object(**arguments))
        except ClientError as error:
            if _code(error) == "NoSuchKey":
                return NotFound()
            if _status(error) == 416:  # the range begins at or after the end
                return self._head_object(key)
            raise
        try:
            data = response["Body"].read()
        except BotoCoreError as error:
            return Unknown(_describe(error))
        if len(data) != response["ContentLength"]:
            return Unknown(f"{len(data)} of {response['ContentLength']} bytes")
        size = int(response["ContentRange"].rpartition("/")[2]) if "ContentRange" in response else len(data)
        if ranged and "ContentRange" not in response:  # a store that ignores ranges sends the whole object
            data = data[start:] if length is None else data[start : start + length]
        return GetResult(data, size, response["ETag"])

    async def _head(self, key: str) -> GetResult | NotFound:
        return await self._request("head", key, self._meta, SECONDS, lambda: self._head_object(key))

    def _head_object(self, key: str) -> GetResult | NotFound:
        try:
            response = self._clients.call(lambda client: client.head_object(**self._object_arguments(key)))
        except ClientError as error:
            if _status(error) == 404:
                return NotFound()
            raise
        return GetResult(b"", response["ContentLength"], response["ETag"])

    def _put(self, call: Callable[[Callable[[Any], Any]], Any], arguments: dict[str, Any]) -> PutResult:
        checked = arguments | {"ContentMD5": _md5(arguments["Body"])}  # here, in a thread: an image may be large
        return Ok(call(lambda client: client.put_object(**checked))["ETag"])

    def _put_body(self, key: str, body: BodyWindow) -> PutResult:
        return Ok(self._send_body(lambda client, more: client.put_object(**self._object_arguments(key), **more), body))

    def _send_body(self, send: Callable[[Any, dict[str, Any]], Any], body: BodyWindow) -> str:
        """Sends a large body and returns its ETag. It carries its MD5 only if the store has refused one without."""
        arguments = {"Body": body, "ContentLength": len(body)}

        def send_whole(client: Any) -> Any:
            body.seek(0)  # an earlier login may have sent it, and the store has refused that login
            return send(client, arguments)

        if not self._uploads_need_md5:
            try:
                return str(self._clients.call(send_whole)["ETag"])
            except ClientError as error:
                if not may_lack_checksum(_status(error), _code(error), str(error)):
                    raise
        arguments["ContentMD5"] = _md5_of_body(body)
        etag = str(self._clients.call(send_whole)["ETag"])
        if not self._uploads_need_md5:
            self._uploads_need_md5 = True
            log.info("store wants Content-MD5 with uploads, they have it from now on store=%s", self.url)
        return etag

    def _list_page(self, prefix: str, after: str, token: str, limit: int) -> Page:
        where = {"ContinuationToken": token} if token else {"StartAfter": self._prefix + after} if after else {}
        arguments = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, "MaxKeys": limit, **where}
        response = self._clients.call(lambda client: client.list_objects_v2(**arguments))
        if "Name" not in response and "IsTruncated" not in response:
            raise ValueError("the listing names no bucket")
        skip = len(self._prefix)
        keys = [
            ListedObject(
                entry["Key"][skip:],
                entry["Size"],
                round(entry["LastModified"].timestamp() * 1000),
                entry.get("ETag", ""),
            )
            for entry in response.get("Contents", [])
        ]
        # A page may have no key although others follow: the store counts the keys that it looked at, not those that it
        # returns.
        return Page(keys, response["NextContinuationToken"] if response.get("IsTruncated") else "")

    def _delete(self, keys: Sequence[str]) -> None:
        names = [{"Key": self._prefix + key} for key in keys]
        wanted = {"Objects": names, "Quiet": True}
        response = self._clients.call(lambda client: client.delete_objects(Bucket=self._bucket, Delete=wanted))
        if errors := response.get("Errors"):  # a missing permission comes so, with status 200
            code, why = str(errors[0].get("Code", "")), errors[0].get("Message")
            raise Unavailable(
                f"delete failed store={self.url} keys={len(errors)} error={why} ({code})",
                refused=is_refused_key(code),
            )

    def _list_uploads(self, prefix: str, marker: dict[str, str]) -> UploadPage:
        arguments = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, "MaxUploads": LIST_KEYS, **marker}
        reply = self._clients.call(lambda client: client.list_multipart_uploads(**arguments))
        now = parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"])
        old = [
            {"Key": upload["Key"], "UploadId": upload["UploadId"]}
            for upload in reply.get("Uploads", [])
            if (now - upload["Initiated"]).total_seconds() > OLD_UPLOAD_SECONDS
            and upload["UploadId"] not in self._own_uploads
        ]
        is_last = not reply.get("IsTruncated") or not reply.get("NextKeyMarker")
        names = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        return UploadPage(old, {} if is_last else {name: reply[of] for name, of in names.items() if reply.get(of)})

    def _abort_upload(self, upload: dict[str, str]) -> None:
        """Aborts an upload. An absent one is no error: another process has aborted it."""
        try:
            self._clients.call(lambda client: client.abort_multipart_upload(Bucket=self._bucket, **upload))
        except ClientError as error:
            if _code(error) != "NoSuchUpload":
                raise

    # -- multipart ----------------------------------------------------------------------------------------------------

    async def _upload_in_parts(self, key: str, whole: UploadBody) -> PutResult:
        """Uploads a few parts at once, each streamed from its file. Aborts an upload that it does not complete."""
        name = self._object_arguments(key)
        created = await self._request(
            "upload", key, self._bulk, SECONDS,
            lambda: self._clients.call(lambda client: client.create_multipart_upload(**name)),
        )  # fmt: skip
        name["UploadId"] = created["UploadId"]
        self._own_uploads.add(created["UploadId"])
        is_complete = False
        try:
            tags = await self._send_parts(key, name, whole)
            result = await self._complete(key, name, tags, whole.size)
            is_complete = isinstance(result, Ok)
            return result
        finally:
            try:
                if not is_complete:
                    await self._abort(key, name)
            finally:
                self._own_uploads.discard(created["UploadId"])

    async def _send_parts(self, key: str, name: dict[str, Any], whole: UploadBody) -> PartTags:
        size = max(self._part_bytes, -(-whole.size // PARTS_MAX))
        starts = range(0, whole.size, size)
        tags: PartTags = [{} for _ in starts]
        queue = iter(enumerate(starts))

        async def send() -> None:
            for index, start in queue:
                window = whole.window(start, min(size, whole.size - start))
                etag = await self._request(
                    "upload",
                    key,
                    self._bulk,
                    _bulk_seconds(size),
                    lambda: self._send_part(name, index, window),  # noqa: B023
                )
                tags[index] = {"PartNumber": index + 1, "ETag": etag}

        async def send_all() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(PARTS_AT_ONCE):
                    group.create_task(send())

        try:
            await run_subtask(send_all(), "parts")
        except BaseExceptionGroup as errors:
            raise first_cause(errors) from None
        return tags

    def _send_part(self, name: dict[str, Any], index: int, body: BodyWindow) -> str:
        part = name | {"PartNumber": index + 1}
        return self._send_body(lambda client, more: client.upload_part(**part, **more), body)

    async def _complete(self, key: str, name: dict[str, Any], tags: PartTags, size: int) -> PutResult:
        arguments = name | {"MultipartUpload": {"Parts": tags}}

        def complete() -> PutResult:
            try:
                return Ok(self._clients.call(lambda client: client.complete_multipart_upload(**arguments))["ETag"])
            except ClientError as error:
                if _code(error) != "NoSuchUpload":
                    raise
            found = self._head_object(key)  # a retry after a lost reply: the first try may have completed it
            return (
                Ok(found.version) if isinstance(found, GetResult) and found.size == size else Unknown("upload vanished")
            )

        return await self._run_put(key, self._bulk, BULK_SECONDS, complete)

    async def _abort(self, key: str, name: dict[str, Any]) -> None:
        try:
            await self._request(
                "abort", key, self._meta, SECONDS,
                lambda: self._clients.call(lambda client: client.abort_multipart_upload(**name)),
            )  # fmt: skip
        except Unavailable as error:
            log.warning(
                "multipart upload was not aborted, the bucket's lifecycle rule has to remove it error=%s", error
            )

    def _object_arguments(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}


def _bulk_seconds(size: int) -> float:
    return BULK_SECONDS + size / BULK_BYTES_PER_SECOND


def _status(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"].get("HTTPStatusCode", 0))


def _code(error: Exception) -> str:
    """Returns the code of a store's error; "" if another error has none."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _md5_of_body(body: BodyWindow) -> str:
    """Returns the MD5 of a body, which is read from its begin to its end and left at its begin."""
    digest = hashlib.md5(usedforsecurity=False)
    body.seek(0)
    while chunk := body.read(HASHED_BYTES):
        digest.update(chunk)
    body.seek(0)
    return base64.b64encode(digest.digest()).decode()


def _describe(error: Exception) -> str:
    """Describes an error in one line, for logs."""
    text = " ".join(str(error).split())
    return f"the reply is not from an object store: {text}" if isinstance(error, MALFORMED_REPLY) else text


def _is_refusal(error: Exception, status: int) -> bool:
    """True if a retry would not help.

    Then the store replied and refused, or the reply is not from a store, or no request can be sent (credentials are
    missing). Throttling and broken connections may succeed the next time.
    """
    if isinstance(error, ClientError):
        return 400 <= status < 500 and status not in TRANSIENT and _code(error) not in TRANSIENT_CODES
    return not isinstance(error, CONNECTION_ERRORS)
