"""Test of requests drawn from /openapi.json, and of requests close to them: no reply is an internal error, and each has
the form that the document states."""

import json
import random
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.http_site import RAW, HttpBroker, HttpReply, run
from tests.scenario import run_by
from tests.seeds import first_seeds
from tiered.records.batch import Codec, encode_batch

REQUESTS = 500
TOPICS = ("t", "u", "-")
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1 << 31, 1 << 63, -(1 << 63), 1 << 64, 1e308, 1.5, "", "a", "\0", "é", "x" * 300),
    *("../..", "%2e", "1", "true", [], {}, [None], [[]], {"a": 1}, "YQ==", "-", "2013-01-01T00:00:00Z", "9" * 400),
)
STRINGS = ("a", "YQ==", "t", "retention.ms", "60000", "x" * 50, "delete", "-1", "zstd")
ODD_NAMES = (
    *("nosuch", "..", "%2e%2e", "%00", "%ff", "a%2Fb", "x" * 250, "x" * 3000, "0", "9", "-1", "9" * 11, "latest"),
    *("%E2%82%AC", "%", "%zz", "+", ";", "'", "<", "{", "|", "^", "`"),
)
QUERIES = ("0", "1", "-1", "latest", "earliest", "20", "x", "", "9" * 25, "string", "json", "%00", "1.5")
ACCEPTED = ("", "*/*", "application/json", RAW, "application/vnd.kafka.v2+json", "text/html", "a;q=x")
METHODS = ("GET", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "TRACE")


class RequestGenerator:
    """Draws requests from a document."""

    def __init__(self, seed: int, document: dict[str, Any], cluster_id: str) -> None:
        self.rng = random.Random(seed)
        self._schemas = document["components"]["schemas"]
        self._cluster_id = cluster_id
        paths = document["paths"].items()
        self.operations = [(path, verb.upper(), each) for path, verbs in paths for verb, each in verbs.items()]

    def is_drawn(self, share: float) -> bool:
        return self.rng.random() < share

    def draw_value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """Draws a value close to a schema."""
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        kind = schema.get("type")
        if self.is_drawn(0.1) or depth > 6 or kind is None:
            return self.rng.choice(ODD_VALUES)
        if kind == "array":
            return [self.draw_value(schema["items"], depth + 1) for _ in range(self.rng.choice((0, 1, 1, 3)))]
        if kind == "object":
            needed, inside = schema.get("required", ()), schema.get("properties", {}).items()
            share = {name: 0.95 if name in needed else 0.5 for name, _ in inside}
            return {name: self.draw_value(each, depth + 1) for name, each in inside if self.is_drawn(share[name])}
        if kind == "string":
            return self.rng.choice(schema.get("enum", STRINGS))
        return self.rng.choice((0, 1, 2, 5, -1, 10**9) if kind == "integer" else (True, False))

    def draw_target(self, path: str, operation: dict[str, Any]) -> str:
        """Draws an address of an operation, mostly of an existing object."""
        there = {"cluster": self._cluster_id, "topic": self.rng.choice(TOPICS), "partition": "0", "broker": "1"}
        query = []
        for parameter in operation.get("parameters", ()):
            name = parameter["name"]
            if parameter["in"] == "query":
                query += [f"{name}={self.rng.choice(QUERIES)}"] if self.is_drawn(0.4) else []
                continue
            good = there.get(name, "retention.ms")
            path = path.replace(f"{{{name}}}", good if self.is_drawn(0.85) else self.rng.choice(ODD_NAMES))
        return quote(path + ("?" + "&".join(query) if query else ""), safe="/?=&%:;+,'-")

    def draw_body(self, kind: str, schema: dict[str, Any]) -> bytes:
        """Draws a body of a media type, sometimes with a changed byte or a missing end."""
        if kind == RAW:
            data = bytearray(encode_batch([(0, b"k", b"v" * 50, ())] * 3, codec=self.rng.choice(list(Codec))))
        else:
            data = bytearray(json.dumps(self.draw_value(schema)).encode())
        if self.is_drawn(0.1):
            data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        return bytes(data[: self.rng.randrange(len(data))] if self.is_drawn(0.05) else data)


def find_fault(answer: HttpReply, method: str, operation: dict[str, Any]) -> str:
    """Returns a description of the fault in a reply; empty if there is none."""
    if answer.status >= 500:
        return "a fault of the broker"
    if answer.status == 204 or method == "HEAD":
        return "a body where none belongs" if answer.body else ""
    if answer.status >= 400:
        error = answer.json
        if "error" in error:  # the form of Iceberg's catalogue
            found = error["error"]
            return "" if found["message"] and found["type"] and found["code"] == answer.status else "no Iceberg error"
        code = error["error_code"]
        whole = set(error) == {"error_code", "message"} and error["message"] and "Error" not in error["message"]
        return "" if whole and answer.status in (code, code // 100) else "not an error in the one form"
    if str(answer.status) not in operation["responses"] and answer.status != 200:
        return "a status that is not in the document"
    if "json" in answer.headers["Content-Type"] and answer.body:
        for line in answer.body.splitlines():
            json.loads(line)
    return ""


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
@run_by(run, "tmp_path")
async def test_no_generated_request_gets_an_internal_error(site: HttpBroker, *, seed: int) -> None:
    document = (await site.get("/openapi.json")).json
    asker = RequestGenerator(seed, document, site.broker.cluster_id)
    answered: set[int] = set()
    for number in range(REQUESTS):
        for topic in TOPICS if number % 50 == 0 else ():
            await site.ask("POST", f"{site.cluster}/topics", {"topic_name": topic})
        path, documented, operation = asker.rng.choice(asker.operations)
        method = documented if asker.is_drawn(0.95) else asker.rng.choice(METHODS)
        target, accept = asker.draw_target(path, operation), asker.rng.choice(ACCEPTED)
        content = operation.get("requestBody", {}).get("content", {})
        kind, shape = asker.rng.choice(list(content.items()) or [("", {"schema": {}})])
        body = asker.draw_body(kind, shape["schema"]) if kind else None
        asked = (seed, number, method, target, accept, body)
        answer = await site.ask(method, target, body, kind=kind, accept=accept)
        assert not find_fault(answer, method, operation), (find_fault(answer, method, operation), asked, answer)
        answered.add(answer.status)
    assert {200, 204, 400, 404, 405, 406, 422} <= answered
