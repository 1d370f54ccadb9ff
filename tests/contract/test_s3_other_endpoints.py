"""Test of endpoints that are no store: a login page, a proxy, an empty 200. None of their replies ends a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from tests.fakes3 import S3Server
from tiered.errors import Unavailable
from tiered.object_store.s3 import S3Store
from tiered.ports import Unknown
from tiered.system.clock import SystemClock, SystemRng

ANSWERS = {
    "a login page": (200, "text/html", b"<html><body><form>Please log in</form><br></body></html>"),
    "nothing at all": (200, "text/plain", b""),
    "XML of something else": (200, "application/xml", b"<?xml version='1.0'?><Feed><Entry/></Feed>"),
    "a page with an error": (404, "text/html", b"<html>no such page"),
}
CALLS: dict[str, Callable[[S3Store], Awaitable[object]]] = {
    "get": lambda store: store.get("k"),
    "range": lambda store: store.get("k", 3, 4),
    "head": lambda store: store.get("k", 0, 0),
    "put": lambda store: store.put("k", b"x", if_absent=True),
    "upload": lambda store: store.upload("k", [b"xyz"]),
    "list": lambda store: store.list("k"),
    "delete": lambda store: store.delete(["k"]),
}


ASKED = [
    (answer, verb)
    for answer in ANSWERS
    for verb in CALLS
    # A deletion is answered with nothing by a store too, and a HEAD has no body that could tell one from the other.
    if (verb, answer) not in (("delete", "nothing at all"), ("delete", "XML of something else"))
    and (verb, answer) != ("head", "a page with an error")
]


@pytest.mark.parametrize(("answer", "verb"), ASKED)
def test_reply_of_another_server_is_unavailable(answer: str, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    status, kind, body = ANSWERS[answer]

    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type=kind)

    async def main() -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            for name, value in S3Server(f"http://{host}:{port}").environment.items():
                monkeypatch.setenv(name, value)
            store = S3Store("bucket", "", SystemClock(), SystemRng())
            try:
                return repr(await CALLS[verb](store))
            except Unavailable as error:
                return f"Unavailable {error}"
            finally:
                await store.close()
        finally:
            await runner.cleanup()

    outcome = asyncio.run(main())
    assert outcome.startswith((Unavailable.__name__, Unknown.__name__)), outcome
