"""A schema registry over HTTP that holds what a test gives it, with the replies of Confluent's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class SchemaServer:
    """The schemas of a registry: the bodies of replies by their paths."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.bodies: dict[str, Any] = {"/schemas/types": ["JSON", "PROTOBUF", "AVRO"]}

    def register(self, number: int, schema: Any, kind: str = "AVRO", guid: str = "", **more: Any) -> None:
        """Adds a schema, with its id and perhaps its guid."""
        body = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
        if kind != "AVRO":
            body["schemaType"] = kind
        self.bodies[f"/schemas/ids/{number}"] = body
        if guid:
            self.bodies[f"/schemas/guids/{guid}"] = body

    def add_version(self, subject: str, version: int, schema: Any, **more: Any) -> None:
        """Adds a version of a subject, for schemas that refer to it."""
        body = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
        self.bodies[f"/subjects/{subject}/versions/{version}"] = body


@contextmanager
def serve_schemas() -> Iterator[SchemaServer]:
    """Runs a registry at a free port of this machine."""
    server = SchemaServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(self.path)
            found = server.bodies.get(self.path.partition("?")[0])
            missing = {"error_code": 40403, "message": "Schema not found"}
            body = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Writes nothing."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = Thread(target=httpd.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
