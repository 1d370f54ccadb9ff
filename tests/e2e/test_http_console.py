"""Tests of the console's page over HTTP: who gets it, from where, and with which headers."""

from __future__ import annotations

import pytest

from tests.e2e.http_site import HttpBroker, run
from tests.e2e.test_http_acls import grant
from tests.e2e.test_http_cross_site import request_bytes
from tests.e2e.test_http_hostile import status_of
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
FOREIGN = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")


@run_by(run, "tmp_path")
async def test_browser_at_the_root_is_led_to_the_console(site: HttpBroker) -> None:
    head = await site.raw(request_bytes("GET", "/", f"Accept: {BROWSER}"))
    assert status_of(head) == 303 and b"Location: /console/\r\n" in head
    assert (await site.get("/")).json == {}
    assert (await site.get("/", "application/vnd.kafka.v2+json")).json == {}


@pytest.mark.parametrize("path", ["/console/", "/console/topics/t/messages", "/console/groups/a%2Fb"])
@run_by(run, "tmp_path")
async def test_page_is_the_same_at_each_address(site: HttpBroker, *, path: str) -> None:
    page = await site.get(path)
    assert page.status == 200 and b"/console/static/main.js" in page.body
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    script = await site.get("/console/static/main.js")
    assert script.status == 200 and script.headers["Content-Type"].startswith("text/javascript")
    again = await site.raw(request_bytes("GET", "/console/static/main.js", f"If-None-Match: {script.headers['Etag']}"))
    assert status_of(again) == 304
    for absent in ("absent.js", "../pages.py", "vendor", ""):
        assert status_of(await site.raw(request_bytes("GET", f"/console/static/{absent}"))) == 404


@run_by(run, "tmp_path")
async def test_link_of_another_site_leads_to_the_page_and_to_nothing_else(site: HttpBroker) -> None:
    document = "Sec-Fetch-Dest: document"
    assert status_of(await site.raw(request_bytes("GET", "/console/topics", *FOREIGN, document))) == 200
    assert status_of(await site.raw(request_bytes("GET", "/topics", *FOREIGN, document))) == 403
    for other in ("Sec-Fetch-Dest: iframe", "Sec-Fetch-Dest: script", "Sec-Fetch-Dest: empty"):
        assert status_of(await site.raw(request_bytes("GET", "/console/topics", *FOREIGN, other))) == 403
    origin = ("Origin: http://other.example", document)
    assert status_of(await site.raw(request_bytes("GET", "/console/", *FOREIGN, *origin))) == 403


@run_by(run, "tmp_path", tiered_console_enable=False)
async def test_console_that_is_off_is_404(site: HttpBroker) -> None:
    for path in ("/console/", "/console/static/main.js"):
        found = await site.get(path)
        assert found.status == 404 and "tiered.console.enable" in found.json["message"]
    assert status_of(await site.raw(request_bytes("GET", "/", f"Accept: {BROWSER}"))) == 200


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_caller_without_rights_gets_the_page_and_sees_what_is_hidden(site: HttpBroker) -> None:
    await site.create("t")
    assert (await site.get("/console/")).status == 200
    assert (await site.get("/tiered/v1/topics")).json == {"topics": []}
    health = (await site.get("/tiered/v1/cluster")).json
    assert health["partial"] and health["hidden"] and health["topics"] == 0
    for part in ("storage", "groups"):
        assert (await site.get(f"/tiered/v1/topics/t/{part}")).json["error_code"] == 40301


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER, tiered_audit_topic="audit")
async def test_page_learns_its_caller_and_the_audit_topic_that_it_may_describe(site: HttpBroker) -> None:
    found = (await site.get("/tiered/v1/console")).json
    own = {
        "principal": "User:ANONYMOUS", "node_id": 1, "read_only": False, "messages": True, "has_warehouse": False,
        "has_authorizer": True,
        "takes_passwords": False,
    }  # fmt: skip
    assert found == own | {"audit_topic": None}
    await grant(site, ("TOPIC", "audit", "DESCRIBE"))
    assert (await site.get("/tiered/v1/console")).json == own | {"audit_topic": "audit"}


@run_by(run, "tmp_path", tiered_console_messages=False)
async def test_console_without_messages_leaves_records_to_other_clients(site: HttpBroker) -> None:
    await site.create("t")
    await site.produce("t", "secret")
    records, host = "/topics/t/partitions/0/records", site.url.removeprefix("http://")
    made = (await site.ask("POST", "/consumers/g", {"format": "json"}, kind="application/vnd.kafka.v2+json")).json
    consumer = made["base_uri"].removeprefix(site.url)
    for page in (("Sec-Fetch-Site: same-origin",), (f"Origin: http://{host}",)):
        for path in (records, f"{records}?offset=0&max_bytes=1", f"{consumer}/records"):
            refused = await site.raw(request_bytes("GET", path, *page, host=host))
            assert status_of(refused) == 403 and b"tiered.console.messages" in refused and b"secret" not in refused
        shown = await site.raw(request_bytes("GET", "/tiered/v1/topics/t/storage", *page, host=host))
        assert status_of(shown) == 200
    typed = await site.raw(request_bytes("GET", records, "Sec-Fetch-Site: none", host=host))
    assert status_of(typed) == 200 and b"secret" in typed
    assert [each["value"] for each in (await site.get(records)).json["records"]] == ["secret"]
    assert (await site.get("/tiered/v1/console")).json["messages"] is False
