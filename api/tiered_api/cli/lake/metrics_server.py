"""The metrics of a load that follows topics, over HTTP at `/metrics`, from a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

from tiered.errors import Code, Refused

REQUEST_SECONDS = 5.0
"""Time for a client to send its request and take the reply: requests are served one after the other."""


@contextmanager
def serve_metrics(port: int, render: Callable[[], str], host: str = "127.0.0.1") -> Iterator[int]:
    """Serves the text that `render` returns meanwhile, and yields the port. Port 0 takes a free one.

    Raises `Refused` if the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == "/metrics"
            body = (render() if found else "there is only /metrics\n").encode()
            self.send_response(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing: a scrape is no event."""

    try:
        server = HTTPServer((host, port), Handler)
    except OSError as error:
        raise Refused(Code.INVALID_CONFIG, f"metrics cannot be served at {host}:{port}: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(REQUEST_SECONDS)
