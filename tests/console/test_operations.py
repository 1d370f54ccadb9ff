"""Tests of the pages for operators in a browser: transactions, access, settings, moves and audit, with an act on each,
a login with few rights, a read-only console, and a page of another site."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from urllib.request import Request, urlopen

import confluent_kafka
import pytest

from tests.compat.test_transaction_tools import write_unverified
from tests.console.site import MARKUP, Site, open_site
from tests.console.test_group_acts import open_act
from tests.console.test_topic_acts import PREVIEW, confirm, describe
from tests.e2e.serving import SECONDS, serve_cluster
from tests.e2e.test_http_tables import add_commit
from tiered.config.settings import STANDARD_AUTHORIZER

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ODD_USER = "User:<img src=x onerror=globalThis.owned=1>"
SECURED = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS;User:admin",
    "tiered.audit.topic": "audit",
}


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster of its own, of which a test stops a broker for a while."""
    with open_site(browser, tmp_path_factory.mktemp("operations")) as opened:
        yield opened


@pytest.fixture(scope="module")
def secured(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker with ACLs and an audit topic, beside the cluster whose browser it uses."""
    options = [word for name, value in SECURED.items() for word in ("-c", f"{name}={value}")]
    with serve_cluster(tmp_path_factory.mktemp("secured") / "data", 1, *options) as up:
        made = Site(up, site.browser)
        made.tiered("topic", "create", "audit")
        made.tiered("topic", "create", "orders")
        yield made


def test_acl_is_added_told_as_a_sentence_and_removed(secured: Site) -> None:
    with secured.visit("access") as page:
        dialog = open_act(page, "Add an ACL")
        dialog.get_by_label("Principal").fill(ODD_USER)
        dialog.get_by_label("Name (* for all)").fill("*")
        dialog.get_by_label("Operation").select_option("ALL")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text(f"{ODD_USER} may do everything with every topic, from any address.").wait_for()
        dialog.get_by_label("Name (* for all)").fill("orders")
        dialog.get_by_label("Operation").select_option("WRITE")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text(f"{ODD_USER} may write the topic orders, from any address.").wait_for()
        assert "tiered acl add --topic orders --allow-principal" in (dialog.locator("pre").text_content() or "")
        dialog.get_by_role("button", name="Add an ACL").click()
        dialog.get_by_text("The ACL is in force.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        row = page.get_by_role("row").filter(has=page.get_by_text(ODD_USER))
        row.wait_for()
        assert ODD_USER in secured.tiered("acl", "list")
        row.get_by_role("button", name="Remove").click()
        dialog = page.get_by_role("dialog")
        confirm(dialog, ODD_USER, "Remove")
        dialog.get_by_text("1 ACL removed.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        page.get_by_text("There are no ACLs").wait_for()


def test_acls_that_cover_a_topic_are_found_from_its_page(secured: Site) -> None:
    secured.tiered("acl", "add", "--allow-principal", "User:all", "--topic", "*", "--operation", "Read")
    secured.tiered("acl", "add", "--deny-principal", "User:exact", "--topic", "orders", "--operation", "Write")
    secured.tiered("acl", "add", "--allow-principal", "User:group", "--group", "*", "--operation", "Read")
    prefixed = ("--resource-pattern-type", "prefixed", "--operation", "Read")
    for user, beginning in (("beginning", "ord"), ("other", "orders-")):
        secured.tiered("acl", "add", "--allow-principal", f"User:{user}", "--topic", beginning, *prefixed)
    with secured.visit("topics/orders") as page:
        page.locator("main").get_by_role("link", name="Access", exact=True).click()
        table = page.get_by_role("table", name="ACLs")
        for user in ("all", "beginning", "exact"):
            table.get_by_text(f"User:{user}", exact=True).wait_for()
        assert table.get_by_text("User:other").count() == table.get_by_text("User:group").count() == 0
        page.locator(".tools > label select").select_option("")
        table.get_by_text("User:group").wait_for()
        page.get_by_label("Covers the name").fill("")
        table.get_by_text("User:other").wait_for()
        page.get_by_label("Search").fill("orders-1")
        page.get_by_text("Others may cover the name: by *, or by its beginning.").wait_for()


def test_acl_that_locks_everybody_out_is_added_only_by_force(site: Site, tmp_path: Path) -> None:
    options = ("-c", f"authorizer.class.name={STANDARD_AUTHORIZER}", "-c", "allow.everyone.if.no.acl.found=true")
    with serve_cluster(tmp_path / "data", 1, *options) as up:
        page = site.open_window()
        page.goto(f"{up.urls[0]}/console/access")
        dialog = open_act(page, "Add an ACL")
        dialog.get_by_label("Principal").fill("User:*")
        dialog.get_by_label("Effect").select_option("DENY")
        dialog.get_by_label("Resource").select_option("CLUSTER")
        dialog.get_by_label("Operation").select_option("ALTER")
        dialog.get_by_role("button", name=PREVIEW).click()
        force = dialog.get_by_label("Do it even if nobody may change ACLs and users any more")
        dialog.get_by_text("User:* may not alter the cluster").wait_for()
        assert not force.count()
        dialog.get_by_role("button", name="Add an ACL").click()
        dialog.get_by_text("no principal may ALTER the cluster").wait_for()
        force.check()
        assert "--operation ALTER --force" in (dialog.locator("pre").text_content() or "")
        dialog.get_by_role("button", name="Add an ACL").click()
        dialog.get_by_text("The ACL is in force.").wait_for()
        page.context.close()


def test_user_is_added_and_removed_and_its_password_never_shown(secured: Site) -> None:
    with secured.visit("access?tab=users") as page:
        dialog = open_act(page, "Add a user")
        dialog.get_by_label("User", exact=True).fill("carol")
        dialog.get_by_label("Password").fill("not to be shown")
        dialog.get_by_label("Once more").fill("another")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text("The two passwords differ.").wait_for()
        assert dialog.get_by_text("carol has a password").count() == 0
        dialog.get_by_label("Once more").fill("not to be shown")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text("No listener of this broker takes passwords of users").wait_for()
        dialog.get_by_text("Rights are those that ACLs and the broker's settings give to User:carol.").wait_for()
        dialog.get_by_role("button", name="Add a user").click()
        dialog.get_by_text("The password of carol is set.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        row = page.get_by_role("row").filter(has=page.get_by_text("carol"))
        row.get_by_text("SCRAM-SHA-512, 4,096 iterations").wait_for()
        assert "not to be shown" not in page.content()
        row.get_by_role("button", name="Remove").click()
        confirm(page.locator("dialog[open]"), "carol", "Remove")
        page.get_by_text("User carol is removed.").wait_for()
    assert "carol" not in secured.tiered("user", "list")


def test_quota_is_set_and_removed(secured: Site) -> None:
    with secured.visit("access?tab=quotas") as page:
        dialog = open_act(page, "Set a quota")
        dialog.get_by_label("Name (empty").fill("alice")
        dialog.get_by_label("Value").fill("1048576")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text("user alice: producer_byte_rate 1,048,576 B/s on each broker.").wait_for()
        dialog.get_by_role("button", name="Set a quota").click()
        dialog.get_by_text("The quota is in force.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        page.get_by_role("row").filter(has=page.get_by_text("user alice")).get_by_role("button").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_text("producer_byte_rate of 1,048,576 B/s ends at once.").wait_for()
        dialog.get_by_role("button", name="Remove").click()
        dialog.get_by_text("The quota is removed.").wait_for()


def test_dialogue_stays_when_the_row_below_it_goes(secured: Site) -> None:
    """The list is read again meanwhile. A dialogue once went with its row, or had the next row's quota to remove."""
    for user in ("dana", "erin"):
        secured.tiered("quota", "set", "--user", user, "producer_byte_rate=1048576")
    with secured.visit("access?tab=quotas") as page:
        listed = page.get_by_role("table", name="Quotas").get_by_role("row")
        listed.filter(has=page.get_by_role("cell", name="user dana")).get_by_role("button").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_text("user dana: producer_byte_rate").wait_for()
        secured.tiered("quota", "remove", "--user", "dana")
        for _ in range(2):  # the page has shown the first reply once it asks for the second one
            with page.expect_response("**/tiered/v1/quotas"):
                pass
        dialog.get_by_text("user dana: producer_byte_rate").wait_for()
        assert page.locator("table[aria-label=Quotas] td:first-child").all_text_contents() == ["user dana", "user erin"]
        dialog.get_by_role("button", name="Cancel").click()
        page.get_by_role("cell", name="user dana").wait_for(state="detached")
        page.get_by_role("cell", name="user erin").wait_for()


def test_setting_of_a_broker_is_changed(secured: Site) -> None:
    with secured.visit("settings") as page:
        page.get_by_role("button", name="Show all settings").click()
        page.get_by_label("Search").fill("log.retention.ms")
        row = page.get_by_role("row").filter(has=page.get_by_text("log.retention.ms", exact=True))
        row.get_by_role("button", name="Change").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_label("log.retention.ms:").fill("86400000")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text("Then it is 86400000.").wait_for()
        dialog.get_by_role("button", name="Change").click()
        dialog.get_by_text("log.retention.ms is changed.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        row.get_by_text("86400000").wait_for()


def test_setting_is_changed_for_all_brokers(secured: Site) -> None:
    with secured.page("settings?search=log.retention.bytes") as page:
        page.get_by_role("button", name="Change").first.click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_label("log.retention.bytes:").fill("123456789")
        dialog.locator("select").select_option("all")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.locator("pre", has_text="log.retention.bytes=123456789 --brokers").wait_for()
        dialog.get_by_role("button", name="Change").click()
        dialog.get_by_text("log.retention.bytes is changed.").wait_for()
    assert secured.tiered("cluster", "config", "get", "log.retention.bytes").strip() == "123456789"


def test_audit_answers_who_deleted_a_topic(secured: Site) -> None:
    secured.tiered("topic", "create", "doomed")
    secured.tiered("topic", "delete", "doomed")
    deadline = time.monotonic() + SECONDS
    with secured.page("audit?resource=doomed") as page:
        row = page.get_by_role("row").filter(has=page.get_by_text("DELETE"))
        while not row.count() and time.monotonic() < deadline:  # the lines come within a second
            page.get_by_role("button", name="Read again").click()
            page.wait_for_timeout(500)
        assert "User:ANONYMOUS" in (row.text_content() or "") and "doomed" in (row.text_content() or "")
    with secured.page("metadata") as page:
        page.get_by_text("topic deleted: doomed").wait_for()
        script = """change => import('/console/static/metadata.js').then(
            metadata => metadata.changeWords(change, new Map([['id', 'it']])))"""
        noted = {"kind": "stored_ends_noted", "ends": [["id", 2, 7]]}
        assert page.evaluate(script, noted) == "all records of it/2 are in the bucket, below 7"
        page.locator("summary", has_text="broker registered").first.click()
        page.locator("details[open] dd", has_text=" UTC").first.wait_for()


def test_open_transaction_is_shown_and_aborted(site: Site) -> None:
    name = f"id {MARKUP}"
    servers = ",".join(site.cluster.kafka)
    settings = {"bootstrap.servers": servers, "transactional.id": name, "transaction.timeout.ms": 600_000}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("empty", "open")
    producer.flush(SECONDS)
    with site.visit("transactions?topic=empty") as page:
        page.get_by_role("table", name="Open transactions").get_by_text("open").wait_for()
        row = page.get_by_role("table", name="Transactions").get_by_role("row").filter(has=page.get_by_text(name))
        row.get_by_text("Ongoing").wait_for()
        row.get_by_role("button", name="Abort").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_text("Its producer is fenced").wait_for()
        confirm(dialog, name, "Abort")
        dialog.get_by_text("The transaction is aborted.").wait_for()
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(SECONDS)


def test_hanging_transaction_is_shown_and_aborted(site: Site) -> None:
    site.tiered("topic", "create", "hanging", "-p", "1", "-r", "1")
    leader = describe(site, "hanging")[0]["leader"]
    site.tiered("cluster", "config", "set", "transaction.partition.verification.enable=false")
    try:
        written = write_unverified(site.cluster.kafka[leader - 1], "hanging")
        ThreadPoolExecutor(1).submit(asyncio.run, written).result(SECONDS)  # the driver of the browser has a loop here
    finally:
        site.tiered("cluster", "config", "reset", "transaction.partition.verification.enable")
    with site.page("transactions?topic=hanging") as page:
        row = page.get_by_role("table", name="Open transactions").get_by_role("row").nth(1)
        row.get_by_text("hangs: no coordinator will end it").wait_for()
        row.get_by_role("button", name="Abort").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_text("The transaction of producer 4711 that begins at offset 0 is aborted.").wait_for()
        confirm(dialog, "hanging", "Abort")
        dialog.get_by_text("The transaction is aborted.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        page.get_by_text("The topic has no open transaction.").wait_for()


def test_moves_are_listed_and_none_is_said(site: Site) -> None:
    with site.visit("moves") as page:
        page.get_by_text("No partition moves.").wait_for()


def test_move_shows_the_bytes_that_its_copies_lack(site: Site) -> None:
    with site.page("topics") as page:
        url = f"{site.urls[0]}/tiered/v1/topics/orders/partitions/0/segments?from=9007199254740991&limit=1"
        reply = page.request.get(url).json()
        while any("log_end_offset" not in each for each in reply["brokers"]):  # one has not replied in time
            reply = page.request.get(url).json()
        own = next(each for each in reply["brokers"] if each["node_id"] == reply["leader"])
        copy = next(each for each in reply["brokers"] if each["node_id"] != reply["leader"])
        assert not reply["segments"] and copy["log_end_offset"] == own["log_end_offset"]
        move = {"topic_name": "orders", "partition_id": 0, "removing_replicas": list[int]()}
        moves = {"data": [move | {"adding_replicas": [copy["node_id"]]}]}
        page.route("**/reassignment", lambda route: route.fulfill(json=moves))
        own.update(local_start_offset=1_000, log_end_offset=2_000, local_bytes=5 << 30)
        copy.update(log_end_offset=1_800)
        page.route("**/orders/partitions/0/segments*", lambda route: route.fulfill(json=reply))
        page.goto(f"{site.urls[0]}/console/moves")
        left = page.get_by_role("table", name="Moves").get_by_role("row").nth(1).get_by_role("cell").nth(4)
        left.get_by_text("1.0 GiB").wait_for()
        copy.update(log_end_offset=300)  # what is in the bucket alone is not copied from the leader
        left.get_by_text("5.0 GiB").wait_for()
        copy.update(error="broker 3 does not reply")
        left.get_by_text("\u2013").wait_for()
        page.unroute("**/orders/partitions/0/segments*")
        left.get_by_text("0 B").wait_for()


def test_move_is_listed_and_cancelled_by_keyboard_alone(site: Site) -> None:
    """A broker that is stopped copies nothing, so that the move does not end before."""
    site.tiered("topic", "create", "slow", "-p", "1", "-r", "1")
    leader = describe(site, "slow")[0]["leader"]
    with urlopen(f"{site.urls[0]}/tiered/v1/cluster", timeout=SECONDS) as reply:
        target = min({1, 2, 3} - {leader, json.load(reply)["controller"]})
    pid, place = site.cluster.pids()[target - 1], next(node for node in (1, 2, 3) if node != target)
    os.kill(pid, signal.SIGSTOP)
    try:
        url = f"{site.urls[place - 1]}/tiered/v1/topics/slow/reassignments"
        body = json.dumps({"partitions": [{"partition": 0, "replicas": [target]}]}).encode()
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=SECONDS) as reply:
            assert reply.status == 200
        with site.page("moves", broker=place - 1) as page:
            page.get_by_role("button", name="Cancel the move").wait_for()
            press_until(page, "Tab", "document.activeElement.textContent === 'Cancel the move'")
            page.keyboard.press("Enter")
            dialog = page.locator("dialog[open]")
            dialog.get_by_text(f"The partition stays on broker {leader}.").wait_for()
            press_until(page, "Tab", "document.activeElement.ariaLabel === 'name to confirm'")
            page.keyboard.type("slow")
            page.keyboard.press("Enter")
            dialog.get_by_text("The move is cancelled.").wait_for()
            page.keyboard.press("Escape")
            page.get_by_text("No partition moves.").wait_for()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert describe(site, "slow")[0]["replicas"] == [leader]


def press_until(page: Page, key: str, condition: str) -> None:
    """Presses a key until the page says that it is enough."""
    for _ in range(60):
        if page.evaluate(condition):
            return
        page.keyboard.press(key)
    raise AssertionError(condition)


def test_markup_in_principals_is_text_in_the_metadata_log(secured: Site) -> None:
    secured.tiered("acl", "add", "--topic", "orders", "--allow-principal", f"User:{MARKUP}", "--operation", "Read")
    with secured.visit("metadata") as page:
        entry = page.locator("summary", has_text="acl added").filter(has_text=MARKUP).first
        entry.click()
        page.locator("dd", has_text=f"User:{MARKUP}").first.wait_for()


@pytest.mark.parametrize("path", ["metadata?to={}", "topics/{}?pick=0:0", "topics/orders?pick=0:{}", "groups/{}"])
def test_markup_in_the_sentence_of_an_error_is_text(site: Site, path: str) -> None:
    page = site.open_window()
    page.goto(f"{site.urls[0]}/console/{path.format(quote(MARKUP, safe=''))}")
    page.locator(".error").first.wait_for()
    assert ", request " in (page.locator(".error").first.text_content() or "")
    assert page.evaluate("globalThis.owned") is None
    assert page.locator("main img, main script").count() == 0
    page.context.close()


@pytest.mark.parametrize("path", ["transactions", "access", "access?tab=users", "settings", "moves", "audit"])
def test_heading_comes_first_on_each_page_of_operators(secured: Site, path: str) -> None:
    """Preact once put a table above the heading."""
    with secured.visit(path) as page:
        page.get_by_role("heading", level=1).wait_for()
        page.locator("main table, main p").first.wait_for()
        assert page.evaluate("document.querySelector('main').firstElementChild.className") == "title"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than its window"


@pytest.fixture(scope="module")
def guarded(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A read-only broker with logins: `admin` may do everything, `guest` may describe one topic. Each topic
    has a table that cannot be read."""
    tables = tmp_path_factory.mktemp("tables")
    for topic in ("orders", "secrets"):
        add_commit(tables, topic, b"no JSON")
    options = [
        *("-c", f"tiered.console.warehouse={tables}"),
        *("-c", f"authorizer.class.name={STANDARD_AUTHORIZER}", "-c", "super.users=User:ANONYMOUS;User:admin"),
        *("-c", "authentication.method=BASIC", "-c", "tiered.console.read.only=true"),
    ]
    with serve_cluster(tmp_path_factory.mktemp("guarded") / "data", 1, *options) as up:
        made = Site(up, site.browser)
        for user in ("admin", "guest"):
            password = tmp_path_factory.mktemp("password") / "file"
            password.write_text("secret\n")
            made.tiered("user", "add", user, "--password-file", str(password), "--force")
        made.tiered("topic", "create", "orders", "secrets")
        made.tiered("acl", "add", "--topic", "orders", "--allow-principal", "User:guest", "--operation", "Describe")
        yield made


def test_login_with_few_rights_sees_what_it_lacks_and_no_empty_list(guarded: Site) -> None:
    page = guarded.open_window(http_credentials={"username": "guest", "password": "secret"})
    for path, words in (
        ("topics", "orders"),
        ("access", "You lack a right"),
        ("access?tab=users", "You lack a right"),
        ("access?tab=quotas", "You lack a right"),
        ("settings?all=1", "You lack a right"),
        ("moves", "You lack a right"),
        ("transactions", "You may not describe all transactional ids"),
        ("costs", "You lack a right"),
        ("tables", "Tables of topics that you may not read are left out."),
        ("tables/orders", "there is no table 'orders' that you may see"),
        ("audit", "There is no audit topic that you may see"),
        ("topics/secrets", "You lack a right"),
    ):
        page.goto(f"{guarded.urls[0]}/console/{path}")
        page.get_by_text(words).first.wait_for()
        page.get_by_text("User:guest").first.wait_for()
        assert path == "topics/secrets" or page.get_by_text("secrets").count() == 0
    page.context.close()


def test_read_only_console_shows_no_act_and_the_broker_refuses_one(guarded: Site) -> None:
    page = guarded.open_window(http_credentials={"username": "admin", "password": "secret"})
    page.goto(f"{guarded.urls[0]}/console/topics/orders")
    page.get_by_text("read-only").wait_for()
    page.get_by_text("Partition 0").wait_for()
    page.get_by_role("link", name="Messages").click()
    page.get_by_text("0 records of").wait_for()
    assert page.get_by_text("Write a record").count() == 0
    page.go_back()
    page.get_by_text("Partition 0").wait_for()
    for label in ("Delete topic", "Delete records", "Move", "Add partitions"):
        assert page.get_by_role("button", name=label, exact=True).count() == 0
    script = """async () => {
        const clusters = await (await fetch("/v3/clusters")).json();
        const path = `/v3/clusters/${clusters.data[0].cluster_id}/topics/orders`;
        return (await fetch(path, { method: "DELETE" })).status;
    }"""
    assert page.evaluate(script) == 403
    assert "orders" in guarded.tiered("topic", "list")
    page.context.close()


def test_page_of_another_site_deletes_nothing_with_a_login_that_is_kept(guarded: Site, tmp_path: Path) -> None:
    cluster = _cluster_of(guarded)
    target = f"{guarded.urls[0]}/v3/clusters/{cluster}/topics"
    (tmp_path / "index.html").write_text(
        f"""<form id=f method=post enctype=text/plain action="{target}">
        <input name='{{"topic_name":"forged","x":"' value='"}}'></form>
        <script>
        const target = "{target}";
        const forged = {{ method: "POST", credentials: "include", body: '{{"topic_name":"forged"}}' }};
        Promise.allSettled([
          fetch(target + "/orders", {{ method: "DELETE", credentials: "include" }}),
          fetch(target, {{ ...forged, mode: "no-cors" }}),
          fetch(target, {{ ...forged, headers: {{ "Content-Type": "application/json" }} }}),
        ]).then((all) => {{ document.title = all.map((each) => each.value?.type ?? each.status).join(); }});
        </script>"""
    )
    page = guarded.open_window(http_credentials={"username": "admin", "password": "secret"})
    page.goto(f"{guarded.urls[0]}/console/topics")
    page.get_by_text("orders").first.wait_for()  # the browser keeps the login from now on
    with _serve(tmp_path) as address:
        page.goto(f"http://{address}/index.html")
        page.wait_for_function("() => document.title !== ''")
        assert page.title() == "rejected,opaque,rejected"
        page.evaluate("document.getElementById('f').submit()")
        page.wait_for_load_state()
    names = guarded.tiered("topic", "list")
    assert "orders" in names and "forged" not in names
    page.context.close()


@contextmanager
def _serve(directory: Path) -> Iterator[str]:
    """Serves the files of a directory at an address of its own: another site."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _cluster_of(site: Site) -> str:
    with urlopen(f"{site.urls[0]}/tiered/v1/node", timeout=SECONDS) as reply:
        return str(json.load(reply)["cluster_id"])
