"""Two S3 servers for tests: our own fake, linearizable and breakable on purpose, and moto behind a lock.

Both run in a thread of this process on a free port and serve any S3 client: ours, Hadoop's, the AWS tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from tests.s3_rules import BUCKET, S3Rules, error_reply
from tiered.object_store.faulty import FaultKind, FaultRule

__all__ = ["BUCKET", "FakeS3", "HttpFault", "S3Server", "s3_fake", "s3_moto"]

BODY_BYTES_MAX = 1 << 30
SEND_BYTES = 256 * 1024


@dataclass
class S3Server:
    """The address of a server, and the environment that its clients need."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }


@dataclass
class HttpFault(FaultRule):
    """A fault of one kind of request. Verbs are GET, HEAD, PUT, POST, DELETE and LIST; ERROR answers `status`."""

    verbs: tuple[str, ...] = ("GET", "HEAD", "PUT", "POST", "DELETE", "LIST")
    status: int = 503


@dataclass
class FakeS3(S3Server):
    """State and switches of the fake. Any thread may set them; `requests` counts by verb, `log` has (verb, key)."""

    faults: list[HttpFault] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(0))
    first_byte_seconds: float = 0.0
    bytes_per_second: float = 0.0
    rules: S3Rules = field(default_factory=S3Rules)
    requests: Counter[str] = field(default_factory=Counter)
    log: list[tuple[str, str]] = field(default_factory=list)
    late: dict[asyncio.Task[None], None] = field(default_factory=dict)
    on_request: Callable[[], None] | None = None
    """Is called before each request is judged."""

    def mend(self) -> None:
        """Removes all faults and all state but the objects."""
        self.faults.clear()
        self.requests.clear()
        self.log.clear()
        self.on_request = None
        self.rules.reset()
        self.first_byte_seconds = self.bytes_per_second = 0.0

    # -- one request --------------------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        bucket, _, key = unquote(request.rel_url.raw_path).lstrip("/").partition("/")
        verb = "LIST" if request.method == "GET" and not key else request.method
        self.requests[verb] += 1
        self.log.append((verb, key))
        if self.on_request is not None:
            self.on_request()
        fault = next((rule for rule in self.faults if rule.hits(verb, key, self.random.random)), None)
        body = await _body(request)
        if fault and fault.kind is FaultKind.FLIPPED and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        delay = self.first_byte_seconds + (fault.seconds if fault and fault.kind is FaultKind.DELAY else 0.0)
        if delay:
            await asyncio.sleep(delay)
        match fault:
            case HttpFault(kind=FaultKind.ERROR):
                return error_reply(
                    fault.status, {503: "SlowDown", 403: "AccessDenied"}.get(fault.status, "InternalError")
                )
            case HttpFault(kind=FaultKind.CONFLICT):
                return error_reply(409, "ConditionalRequestConflict")
            case HttpFault(kind=FaultKind.LATE_APPLY):
                task = asyncio.create_task(self._apply_late(fault.seconds, request, bucket, key, body))
                self.late[task] = None
                task.add_done_callback(self.late.pop)
                return _hang_up(request)
        stale_seconds = fault.seconds if fault and fault.kind is FaultKind.STALE_LIST else 0.0
        response = self.rules.answer(request, bucket, key, body, stale_seconds)
        if fault and fault.kind is FaultKind.LOST_REPLY:
            return _hang_up(request)
        return await self._send(request, response, fault)

    async def _apply_late(self, seconds: float, request: web.Request, bucket: str, key: str, body: bytes) -> None:
        await asyncio.sleep(seconds)
        self.rules.answer(request, bucket, key, body, 0.0)

    async def _send(self, request: web.Request, response: web.Response, fault: HttpFault | None) -> web.StreamResponse:
        """Sends a reply: whole, or broken off, or damaged, or at the rate of a slow link."""
        body = response.body if isinstance(response.body, bytes) else b""
        if fault and fault.kind is FaultKind.FLIPPED and request.method == "GET" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
            response.body = body
        truncated = fault is not None and fault.kind is FaultKind.TRUNCATED
        if not truncated and not (self.bytes_per_second and request.method == "GET"):
            return response
        stream = web.StreamResponse(status=response.status, headers=response.headers)
        stream.content_length = len(body)
        await stream.prepare(request)
        end = len(body) // 2 if truncated else len(body)
        for at in range(0, end, SEND_BYTES):
            chunk = body[at : min(end, at + SEND_BYTES)]
            if self.bytes_per_second:
                await asyncio.sleep(len(chunk) / self.bytes_per_second)
            await stream.write(chunk)
        return _hang_up(request) if truncated else stream


async def _body(request: web.Request) -> bytes:
    """Returns the body without the frames of a signed stream."""
    raw = await request.read()
    if "x-amz-decoded-content-length" not in request.headers:
        return raw
    source, whole = io.BytesIO(raw), io.BytesIO()
    while size := int(source.readline().split(b";")[0] or b"0", 16):
        whole.write(source.read(size))
        source.readline()
    return whole.getvalue()


def _hang_up(request: web.Request) -> web.Response:
    """Closes the connection without a reply."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@contextlib.contextmanager
def s3_fake() -> Iterator[FakeS3]:
    """Yields the fake, listening; its bucket is called `bucket`."""
    fake = FakeS3("")
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_route("*", "/{path:.*}", fake.handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        fake.endpoint = f"http://{host}:{port}"
        started.set()
        await stop.wait()
        for task in list(fake.late):
            task.cancel()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="fake-s3", daemon=True)
    thread.start()
    assert started.wait(10), "the fake S3 server did not start"
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


@contextlib.contextmanager
def s3_moto() -> Iterator[S3Server]:
    """Yields moto, with one request at a time: its own compare-and-put is two steps. Its bucket is called `bucket`."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        with lock:
            return list(application(environ | {"wsgi.input": io.BytesIO(body)}, start_response))

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    thread = threading.Thread(target=server.serve_forever, name="moto", daemon=True)
    thread.start()
    try:
        moto = S3Server(f"http://127.0.0.1:{server.server_port}")
        make_bucket(moto)
        yield moto
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def make_bucket(server: S3Server) -> None:
    """Makes the bucket of tests."""
    from botocore.session import get_session

    session = get_session()
    session.set_credentials("test", "test")
    client = session.create_client("s3", region_name="us-east-1", endpoint_url=server.endpoint)
    client.create_bucket(Bucket=BUCKET)
