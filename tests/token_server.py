"""A token server that a test runs: OAuth's client credentials for tokens, and the public keys that check them."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from tests.tokens import EC, key_set, token

CLIENT, SECRET = "compat-client", "s3cret"
SECONDS = 30


class TokenServer:
    """The server, at `url`. Tests change its fields while it runs."""

    def __init__(self) -> None:
        self.life_seconds = 300.0
        self.key: Any = EC
        self.status = 200
        self.reply: bytes | None = None
        """A reply in place of one with a token."""
        self.forms: list[Mapping[str, list[str]]] = []
        """The forms of accepted requests."""
        self.headers: list[str] = []
        """The `Authorization` of every request."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = SECONDS

            def do_GET(self) -> None:
                self._answer(200, key_set())

            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(*server.issue(self.headers["Authorization"], parse_qs(form)))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Writes nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        root = f"http://127.0.0.1:{self._http.server_port}"
        self.url, self.keys_url = f"{root}/token", f"{root}/keys"

    def issue(self, authorization: str, form: Mapping[str, list[str]]) -> tuple[int, bytes]:
        """Returns status and body of the reply to a request for a token."""
        self.headers.append(authorization)
        client, _, secret = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if (client, secret) != (CLIENT, SECRET) or form.get("grant_type") != ["client_credentials"]:
            return 401, b'{"error": "invalid_client", "error_description": "not to be shown"}'
        self.forms.append(form)
        if self.reply is not None or self.status != 200:
            return self.status, self.reply or b""
        return 200, json.dumps(self.make_reply()).encode()

    def make_reply(self) -> dict[str, Any]:
        """Returns a reply with a new token for the client."""
        # PyJWT rounds no claims: whole seconds alone are good for every client.
        now = time.time()
        signed = token(self.key, sub=CLIENT, iat=int(now), exp=int(now + self.life_seconds), scope="records")
        return {"access_token": signed, "token_type": "Bearer", "expires_in": int(self.life_seconds)}

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextmanager
def run_token_server() -> Iterator[TokenServer]:
    """Yields a token server, and ends it."""
    server = TokenServer()
    try:
        yield server
    finally:
        server.close()
