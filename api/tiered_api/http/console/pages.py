"""The console's page and its files. They hold no data: the page asks the HTTP interface, as the caller that it is.

The page is the same at each address below `/console/`. Its script shows what the address names.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse

ROOT = "/console/"
SETTING = "tiered.console.enable"
INDEX = "index.html"
MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": media_types.JSON,
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
FILE_TYPES = tuple(each.partition(";")[0] for each in MEDIA_TYPES.values())
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy: nothing from other hosts, nothing inside the page, no frame around it."""
SECURITY_HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-cache"),
)


class ConsoleFile(NamedTuple):
    """A file with its media type and its ETag."""

    body: bytes
    media_type: str
    etag: str


@cache
def load_files() -> dict[str, ConsoleFile]:
    """Returns all files by their path below `static/`. They are a part of the package, and some 80 kB."""
    root, found = Path(__file__).parent / "static", dict[str, ConsoleFile]()
    for each in sorted(root.rglob("*.*")):
        body = each.read_bytes()
        media_type, etag = MEDIA_TYPES[each.suffix[1:]], f'"{sha256(body).hexdigest()[:32]}"'
        found[each.relative_to(root).as_posix()] = ConsoleFile(body, media_type, etag)
    return found


async def get_console_page(request: HttpRequest) -> web.StreamResponse:
    """Returns the page of the console."""
    return _send_file(request, INDEX)


async def redirect_to_console(request: HttpRequest) -> web.StreamResponse:
    """Redirects to the console."""
    return redirect_to_page()


async def get_console_file(request: HttpRequest) -> web.StreamResponse:
    """Returns a file of the console."""
    return _send_file(request, request.args["file"])


def _send_file(request: HttpRequest, name: str) -> web.StreamResponse:
    if not request.context.broker.settings.tiered_console_enable:
        raise HttpError(404, f"the console is off ({SETTING})")
    found = load_files().get(name)
    if found is None:
        raise HttpError(404, f"the console has no file {name[:100]!r}")
    headers = (*SECURITY_HEADERS, ("ETag", found.etag))
    if request.headers.get("If-None-Match") == found.etag:
        return HttpResponse(status=304, media_type=found.media_type, headers=headers)
    return HttpResponse(found.body, media_type=found.media_type, headers=headers)


def wants_page(request: HttpRequest) -> bool:
    """True if the caller at `/` is a browser that shows a page, and the console is on."""
    if not request.context.broker.settings.tiered_console_enable or "text/html" not in request.headers.get(
        "Accept", ""
    ):
        return False
    offered = (media_types.V2, media_types.JSON, media_types.HTML)
    return media_types.negotiate_type(request.headers.get("Accept"), offered) == media_types.HTML


def redirect_to_page() -> web.StreamResponse:
    """Returns a redirect to the console."""
    return HttpResponse(status=303, headers=(("Location", ROOT), ("Vary", "Accept")))
