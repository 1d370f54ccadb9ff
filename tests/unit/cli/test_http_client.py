"""Tests of requests to brokers by HTTP: addresses, errors in the words of the broker, and where a login goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from pyspark_tiered.log.login import HttpLogin
from tiered.errors import Code, Refused, Unavailable
from tiered.security.secret import Secret
from tiered_api.cli.client_settings import ClientSettings, Source
from tiered_api.cli.explain.http_client import NODE, BrokersHttp, has_brokers_alone
from tiered_api.cli.lake.http_place import HttpPlace

LOGIN = HttpLogin(user="alice", password=Secret("pencil"))


class Broker(ThreadingHTTPServer):
    """A server that has a cluster id, keeps the logins that come, and replies with one status."""

    def __init__(self, cluster_id: str, status: int = 200, body: bytes = b"{}") -> None:
        super().__init__(("127.0.0.1", 0), Replies)
        self.cluster_id, self.status, self.body = cluster_id, status, body
        self.logins: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Replies(BaseHTTPRequestHandler):
    server: Broker

    def do_GET(self) -> None:
        self.server.logins.append((self.path, self.headers.get("Authorization")))
        is_node = self.path == NODE
        body = json.dumps({"cluster_id": self.server.cluster_id}).encode() if is_node else self.server.body
        self.send_response(200 if is_node else self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@contextmanager
def served(*brokers: Broker) -> Iterator[BrokersHttp]:
    """Yields the client of the first broker, while all serve."""
    threads = [Thread(target=each.serve_forever, kwargs={"poll_interval": 0.01}) for each in brokers]
    for thread in threads:
        thread.start()
    try:
        yield BrokersHttp(HttpPlace(brokers[0].address, LOGIN, ClientSettings(())))
    finally:
        for broker in brokers:
            broker.shutdown()
            broker.server_close()
        for thread in threads:
            thread.join()


def test_login_goes_to_brokers_of_the_same_cluster_only() -> None:
    named, other, foreign = Broker("a"), Broker("a"), Broker("b")
    with served(named, other, foreign) as http:
        assert http.get_json("/x") == {}
        for _ in range(2):
            assert http.get_json("/x", other.address) == {}
        with pytest.raises(Refused, match="is of another cluster"):
            http.get_json("/x", foreign.address)
    assert foreign.logins == [(NODE, None)]
    assert [path for path, _ in other.logins] == [NODE, "/x", "/x"] and other.logins[0][1] is None
    assert (other.logins[1][1] or "").startswith("Basic ")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, b'{"error_code": 40301, "message": "no right"}', "no right"),
        (404, b'{"error_code": 40401, "message": "no topic"}', "no topic"),
        (400, b"<html>", "status 400"),
    ],
)
def test_refusal_is_in_the_words_of_the_broker(status: int, body: bytes, words: str) -> None:
    with served(Broker("a", status, body)) as http, pytest.raises(Refused, match=words):
        http.get_json("/x")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_reply_that_another_try_may_change_is_unavailable(status: int) -> None:
    with served(Broker("a", status, b'{"message": "later"}')) as http, pytest.raises(Unavailable, match="later"):
        http.get_json("/x")


def test_broker_that_is_away_is_unavailable() -> None:
    with served(Broker("a")) as http:
        pass
    with pytest.raises(Unavailable, match="no broker replies at http://127"):
        http.get("/x")


@pytest.mark.parametrize("address", ["", "host:x", "ftp://host", "http://user@host", "http://"])
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(Refused) as caught:
        BrokersHttp(HttpPlace(address, LOGIN, ClientSettings(())))
    assert caught.value.code is Code.INVALID_REQUEST


def test_addresses_get_scheme_and_port() -> None:
    def base(address: str, protocol: str = "") -> str:
        return BrokersHttp(HttpPlace(address, HttpLogin(protocol), ClientSettings(()))).base

    assert base("host") == "http://host:8082" and base("https://host:1") == "https://host:1"
    assert base("host", "SSL") == "https://host:8082" and base("[::1]:5") == "http://[::1]:5"


@pytest.mark.parametrize(
    ("sources", "asks_brokers"),
    [
        ([], False),
        ([{"brokers": "a:9092"}], True),
        ([{"brokers": "a:9092", "http": "a:8082"}], False),
        ([{"brokers": "a:9092"}, {"brokers": "b:9092", "http": "b:8082"}], True),
        ([{"timeout": "1"}, {"http": "b:8082"}], False),
    ],
)
def test_first_source_with_an_address_says_which_cluster_is_asked(
    sources: list[dict[str, str]], asks_brokers: bool
) -> None:
    """A variable with brokers goes before a profile with HTTP, as it goes before its brokers."""
    assert has_brokers_alone(ClientSettings(tuple(Source("s", each) for each in sources))) is asks_brokers
