"""Tests of web pages of other sites in a browser that reaches the broker: they can neither change nor read anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.e2e.http_site import HttpBroker, run
from tests.e2e.test_http_hostile import body_of, status_of
from tests.e2e.test_http_login import BASIC, basic, set_user
from tests.scenario import run_by
from tiered_api.http.exchange import media_types

V2 = media_types.V2
CONSUMERS = "/consumers/billing"


def request_bytes(method: str, path: str, *headers: str, body: bytes = b"", host: str = "127.0.0.1") -> bytes:
    """Sends one request on a connection of its own."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.mark.parametrize("body", [b"", b'{"name": "one"}'], ids=["empty", "object"])
@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
@run_by(run, "tmp_path")
async def test_consumer_request_of_a_type_that_needs_no_preflight_is_refused_415(
    site: HttpBroker, *, kind: str, body: bytes
) -> None:
    """A page may send these content types to any site without a preflight request."""
    headers = [f"Content-Type: {kind}"] if kind else []
    for path in ("", "/instances/one/subscription", "/instances/one/offsets", "/instances/one/positions/end"):
        answer = await site.raw(request_bytes("POST", CONSUMERS + path, *headers, body=body))
        assert (status_of(answer), body_of(answer)["error_code"]) == (415, 415), path
        assert V2 in str(body_of(answer)["message"])
    assert not (await site.get(f"{site.cluster}/consumer-groups")).json["data"]


@run_by(run, "tmp_path")
async def test_every_post_put_and_patch_without_a_content_type_is_refused_415(site: HttpBroker) -> None:
    await site.create("t")
    paths = (await site.get("/openapi.json")).json["paths"]
    asked = 0
    for path, operations in paths.items():
        target = path.format_map(
            dict.fromkeys(
                (
                    "group",
                    "instance",
                    "config",
                    "consumer",
                    "page",
                    "file",
                    "user",
                    "transactional_id",
                    "table",
                    "base",
                    "subject",
                    "version",
                    "id",
                    "guid",
                    "namespace",
                ),
                "x",
            )
            | path_arguments(site)
        )
        for method in {"post", "put", "patch"} & operations.keys():
            for body in (b"", b"{}"):
                answer = await site.raw(request_bytes(method.upper(), target, body=body))
                assert status_of(answer) == 415, (method, path, answer)
                asked += 1
    assert asked > 30


def path_arguments(site: HttpBroker) -> dict[str, str]:
    """Returns arguments of paths for which there is an object."""
    return {"cluster": site.broker.cluster_id, "topic": "t", "partition": "0", "broker": "1"}


@run_by(run, "tmp_path")
async def test_delete_needs_a_content_type_only_with_a_body(site: HttpBroker) -> None:
    for topic in ("a", "b"):
        await site.create(topic)
    one, other = (f"{site.cluster}/topics/{topic}" for topic in ("a", "b"))
    assert status_of(await site.raw(request_bytes("DELETE", one))) == 204
    assert status_of(await site.raw(request_bytes("DELETE", other, "Content-Type: text/plain", body=b"{}"))) == 415
    assert status_of(await site.raw(request_bytes("DELETE", other, body=b"{}"))) == 415
    json = request_bytes("DELETE", other, "Content-Type: application/json; charset=utf-8", body=b"{}")
    assert status_of(await site.raw(json)) == 204


@pytest.mark.parametrize(
    "header",
    [
        "Origin: http://evil.example",
        "Origin: http://127.0.0.1:1",
        "Origin: null",
        "Origin: http://127.0.0.1.evil.example",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ],
)
@run_by(run, "tmp_path")
async def test_request_of_a_page_of_another_site_is_refused_403(site: HttpBroker, *, header: str) -> None:
    await site.create("t")
    records = "/topics/t/partitions/0/records"
    for asked in (
        request_bytes("GET", "/healthz", header),
        request_bytes("GET", f"{site.cluster}/topics", header),
        request_bytes("GET", f"{records}?timestamp=1", header),
        request_bytes("GET", records, header, "Accept: text/event-stream"),
        request_bytes("GET", records, header, "Upgrade: websocket", "Connection: Upgrade"),
        request_bytes("DELETE", f"{site.cluster}/topics/t", header),
        request_bytes("OPTIONS", f"{site.cluster}/topics/t", header),
        request_bytes("POST", CONSUMERS, header, f"Content-Type: {V2}"),
    ):
        answer = await site.raw(asked)
        assert (status_of(answer), body_of(answer)["error_code"]) == (403, 403), asked
        assert "tiered.http.allowed.hosts" in str(body_of(answer)["message"])
    assert "t" in site.broker.image.topics


@run_by(run, "tmp_path")
async def test_request_of_the_brokers_own_page_or_of_a_person_is_served(site: HttpBroker) -> None:
    port = site.url.rpartition(":")[2]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        own = request_bytes("GET", "/v3/clusters", f"Origin: http://{host}", "Sec-Fetch-Site: same-origin", host=host)
        assert status_of(await site.raw(own)) == 200
    for word in ("none", "same-origin"):
        assert status_of(await site.raw(request_bytes("GET", "/healthz", f"Sec-Fetch-Site: {word}"))) == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8082", "localhost.evil.example", "127.0.0.1.nip.io"])
@run_by(run, "tmp_path")
async def test_request_by_another_host_name_is_refused_403(site: HttpBroker, *, host: str) -> None:
    """For the browser, a page whose name points to 127.0.0.1 (DNS rebinding) has the origin of the broker."""
    await site.create("t")
    own = (f"Origin: http://{host}", "Sec-Fetch-Site: same-origin")
    for method, path in (("GET", "/v3/clusters"), ("GET", "/metrics"), ("DELETE", f"{site.cluster}/topics/t")):
        for headers in (own, ()):
            answer = await site.raw(request_bytes(method, path, *headers, host=host))
            assert (status_of(answer), body_of(answer)["error_code"]) == (403, 403)
            assert "tiered.http.allowed.hosts" in str(body_of(answer)["message"])
    assert "t" in site.broker.image.topics


def test_request_by_an_address_or_by_a_name_of_the_broker_is_served(tmp_path: Path) -> None:
    names = ("127.0.0.1:1", "10.1.2.3", "[::1]:8082", "localhost", "LocalHost.:80", "Kafka.Example.org:8082")
    own = (socket.gethostname(), "broker-1.internal:1", "")

    async def scenario(site: HttpBroker) -> None:
        for host in (*names, *own):
            assert status_of(await site.raw(request_bytes("GET", "/v3/clusters", host=host))) == 200, host

    advertised = ("PLAINTEXT://broker-1.internal:9092",)
    run(tmp_path, scenario, advertised_listeners=advertised, tiered_http_allowed_hosts=("kafka.example.org",))


@run_by(run, "tmp_path", tiered_http_allowed_hosts=("kafka.example.org",))
async def test_page_of_an_allowed_host_is_served_behind_a_proxy(site: HttpBroker) -> None:
    for headers in (
        ("Origin: https://kafka.example.org", "Sec-Fetch-Site: same-origin"),
        ("Origin: https://kafka.example.org:8443", "Sec-Fetch-Site: cross-site"),
    ):
        assert status_of(await site.raw(request_bytes("GET", "/v3/clusters", *headers))) == 200, headers


@run_by(run, "tmp_path", tiered_http_allowed_hosts=("*",))
async def test_setting_allows_any_host_and_no_page_of_another_site(site: HttpBroker) -> None:
    assert status_of(await site.raw(request_bytes("GET", "/v3/clusters", host="any.example"))) == 200
    page = request_bytes("GET", "/v3/clusters", "Origin: http://evil.example", host="any.example")
    assert status_of(await site.raw(page)) == 403


@run_by(run, "tmp_path")
async def test_fast_path_serves_no_page_of_another_site(site: HttpBroker) -> None:
    await site.create("t")
    path, record = f"{site.cluster}/topics/t/records", {"value": {"type": "JSON", "data": 1}}
    for _ in range(3):  # from the second time on the head is known
        assert (await site.ask("POST", path, record, Host="localhost")).status == 200
        assert (await site.ask("POST", path, record, Host="localhost", Origin="http://evil.example")).status == 403
        assert (await site.ask("POST", path, record, Host="localhost", Sec_Fetch_Site="cross-site")).status == 403
        assert (await site.ask("POST", path, record, Host="evil.example")).status == 403
    replica = site.broker.leader_replica("t", 0)
    assert replica.log.end_offset == 3


@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_login_that_the_browser_keeps_serves_no_page_of_another_site(site: HttpBroker) -> None:
    """A browser adds the login to each request, whichever page makes it."""
    await set_user(site, "alice", "secret")
    await site.create("t")
    login = f"Authorization: {basic('alice', 'secret')}"
    for header in ("Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"):
        for method, path in (("DELETE", f"{site.cluster}/topics/t"), ("POST", f"{site.cluster}/topics")):
            kind = "Content-Type: application/json"
            assert status_of(await site.raw(request_bytes(method, path, login, header, kind, body=b"{}"))) == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        head = (login, "Sec-Fetch-Site: none", f"Content-Type: {kind}")
        body = b'{"topic_name": "forged"}'
        assert status_of(await site.raw(request_bytes("POST", f"{site.cluster}/topics", *head, body=body))) == 415
    assert "t" in site.broker.image.topics and "forged" not in site.broker.image.topics


@run_by(run, "tmp_path", tiered_console_read_only=True)
async def test_read_only_console_changes_nothing_and_scripts_do(site: HttpBroker) -> None:
    port = site.url.rpartition(":")[2]
    host = f"127.0.0.1:{port}"
    own = (f"Origin: http://{host}", "Sec-Fetch-Site: same-origin", "Content-Type: application/json")
    record = f"{site.cluster}/topics/t/records"
    await site.create("t")
    for headers in (own, own[:1] + own[2:], own[1:]):
        for method, path, body in (
            ("POST", f"{site.cluster}/topics", b'{"topic_name": "made"}'),
            ("DELETE", f"{site.cluster}/topics/t", b""),
            ("POST", record, b'{"value": {"type": "JSON", "data": 1}}'),
            ("POST", CONSUMERS, b"{}"),
        ):
            answer = await site.raw(request_bytes(method, path, *headers, host=host, body=body))
            assert (status_of(answer), body_of(answer)["error_code"]) == (403, 40301), (method, path)
            assert "tiered.console.read.only" in str(body_of(answer)["message"])
    about = request_bytes("GET", "/tiered/v1/console", *own[:2], host=host)
    assert body_of(await site.raw(about))["read_only"] is True
    assert (await site.ask("POST", f"{site.cluster}/topics", {"topic_name": "made"})).status == 201
    assert site.broker.image.topics.keys() >= {"t", "made"}
