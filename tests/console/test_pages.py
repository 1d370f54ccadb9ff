"""Tests of the console's pages in a browser, on three brokers with records in both tiers.

Each page fails its test if it reports an error, asks another host for anything, or runs text of a record.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import confluent_kafka
import pytest

from tests.console.site import MARKUP, RECORDS, Site
from tests.e2e.serving import SECONDS

PAGES = {
    "": "Brokers",
    "topics": "orders",
    "topics/orders": "Partition 2",
    "topics/orders?tab=groups": "billing",
    "topics/orders?tab=settings": "local.retention.bytes",
    "topics/orders/messages": "200 records",
    "topics/empty/messages": "0 records",
    "groups": "billing",
    "metadata": "topic created: empty",
    "groups/billing": "The lag does not change",
}


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.also)])
@pytest.mark.parametrize("path", PAGES)
def test_page_shows_its_subject(site: Site, path: str, theme: str) -> None:
    with site.page(path, color_scheme=theme) as page:
        page.get_by_text(PAGES[path]).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than its window"
        assert page.locator("h1").count() == 1 and "·" in page.title()


def test_rates_of_records_and_the_requests_to_the_bucket_are_shown(site: Site) -> None:
    with site.page("") as page:
        page.locator("svg.curve").wait_for()
        row = page.get_by_role("table", name="Requests to the bucket").get_by_role("row", name="segments")
        row.wait_for()
        assert int(row.get_by_role("cell").nth(1).text_content() or "") > 0
        for _ in range(100):
            site.produce("empty", [{"key": "rate", "value": "y" * 20_000}])
            if "KiB/s" in (page.locator("svg.curve").get_attribute("aria-label") or ""):
                break
            page.wait_for_timeout(300)
        assert "KiB/s" in (page.locator("svg.curve").get_attribute("aria-label") or "")


def test_bars_of_the_tiers_are_those_of_the_interface(site: Site) -> None:
    with site.page("topics/orders") as page:
        page.locator("svg.tiers rect.bucket").first.wait_for()
        words = page.locator("svg.tiers").first.get_attribute("aria-label") or ""
        assert words.startswith("Partition 0: ") and "in the bucket" in words and "on disk alone" in words
        assert page.locator("svg.tiers rect.position title").first.text_content().startswith("billing: ")  # type: ignore[union-attr]


def test_search_finds_a_record_in_the_bucket_and_its_address_keeps_it(site: Site) -> None:
    found = []
    for partition in range(3):
        with site.page(f"topics/orders/messages?partition={partition}&from=start&filter=%22id%22%3A0%2C") as page:
            page.get_by_text("scanned;").wait_for()
            found.append(page.locator("table[aria-label=Records] tbody tr").count())
    assert sorted(found) == [0, 0, 1]


def test_filters_go_together_and_stay_in_the_address(site: Site) -> None:
    site.produce("empty", [{"key": "filtered", "value": {"status": status}} for status in ("failed", "ok", "failed")])
    with site.page("topics/empty/messages?from=start") as page:
        page.get_by_text("scanned;").wait_for()
        page.get_by_text("More filters").click()
        page.get_by_label("Key is").fill('"filtered"')  # the broker keeps a key of JSON as JSON
        page.get_by_label("JSON value").fill('$.status == "failed"')
        page.get_by_role("button", name="Read", exact=True).click()
        page.get_by_text("2 records of").wait_for()
        with site.page(page.url.partition("/console/")[2]) as again:
            again.get_by_text("2 records of").wait_for()
            again.get_by_label("Header").fill("trace")
            again.get_by_role("button", name="Read", exact=True).click()
            again.get_by_text("0 records of").wait_for()


def test_text_of_records_is_shown_as_text(site: Site) -> None:
    shown = 0
    for partition in range(3):
        with site.page(f"topics/orders/messages?partition={partition}&from=start&filter=script") as page:
            page.get_by_text("scanned;").wait_for()
            for each in page.locator("button[aria-expanded]").all():
                each.click()
            shown += page.get_by_text(MARKUP).count()
    assert shown > RECORDS // 100


def test_live_page_shows_a_record_that_is_written_now(site: Site) -> None:
    with site.page("topics/empty/messages") as page:
        page.get_by_role("button", name="Live").click()
        page.get_by_text("Live: 0 records").wait_for()
        for number in range(50):  # the stream may begin after a record or two
            site.produce("empty", [{"key": "now", "value": number}])
            if page.get_by_role("cell", name="now").count():
                break
            page.wait_for_timeout(200)
        page.get_by_role("cell", name="now").first.wait_for()
        assert page.get_by_label("Contains").is_disabled(), "a live page keeps its filters"


def test_live_page_has_only_records_that_fit_its_filters(site: Site) -> None:
    with site.page("topics/empty/messages?json=%24.wanted") as page:
        page.get_by_role("button", name="Live").click()
        page.get_by_text("Live: 0 records").wait_for()
        for number in range(50):  # the stream may begin after a record or two
            site.produce("empty", [{"key": "not", "value": number}, {"key": "this", "value": {"wanted": number}}])
            if page.get_by_role("cell", name="this").count():
                break
            page.wait_for_timeout(200)
        page.get_by_role("cell", name="this").first.wait_for()
        assert not page.get_by_role("cell", name='"not"', exact=True).count()


def test_record_is_written_and_its_reads_elsewhere_are_told(site: Site) -> None:
    with site.page("topics/empty/messages?from=start") as page:
        page.get_by_text("Write a record").click()
        page.get_by_label("Key", exact=True).fill("written")
        page.locator("textarea").fill("by hand")
        page.get_by_role("button", name="Write", exact=True).click()
        page.get_by_text("Written to partition 0 at offset").wait_for()
        page.get_by_role("button", name="Read", exact=True).click()
        page.get_by_role("cell", name="by hand").wait_for()
        page.locator("button[aria-expanded]").last.click()
        page.get_by_text("The same in other tools").click()
        told = page.locator("details pre").all_text_contents()
        assert len(told) == 5 and all("empty" in each for each in told)
        offset = page.locator("button[aria-expanded]").last.text_content()
        kcat = f"kcat -b {','.join(site.cluster.kafka)} -C -t 'empty' -p 0 -o {offset} -c 1"
        assert kcat in told


def test_keyboard_alone_reaches_a_topic(site: Site) -> None:
    with site.page("") as page:
        page.get_by_text("Brokers").first.wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
        for _ in range(3):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="orders").wait_for()
        page.get_by_role("link", name="orders").press("Enter")
        page.get_by_role("link", name="Partition 0", exact=True).wait_for()
        page.go_back()
        page.get_by_role("link", name="empty").wait_for()


def test_unknown_things_are_named_by_the_sentence_of_the_interface(site: Site) -> None:
    for path, words in (
        ("topics/absent", "absent"),
        ("groups/absent", "consumer group 'absent' not found"),
        ("nothing/here", "No such page"),
    ):
        context = site.browser.new_context()
        page = context.new_page()
        page.goto(f"{site.urls[0]}/console/{path}")
        page.get_by_text(words).first.wait_for()
        context.close()


def test_page_of_a_broker_that_goes_names_the_others_and_returns(site: Site) -> None:
    pid = site.cluster.pids()[2]
    context = site.browser.new_context()
    own, other = context.new_page(), context.new_page()
    for page, url in ((own, site.urls[2]), (other, site.urls[0])):
        page.set_default_timeout(90_000)
        page.goto(f"{url}/console/")
        page.get_by_text("Healthy.").wait_for()
    own.wait_for_function("performance.getEntriesByName(location.origin + '/tiered/v1/cluster').length > 1")
    os.kill(pid, signal.SIGSTOP)
    try:
        other.get_by_text("Not healthy.").wait_for()
        own.get_by_text("The broker does not reply.").wait_for()
        assert own.get_by_role("link", name="broker 1").get_attribute("href") == f"{site.urls[0]}/console/"
    finally:
        os.kill(pid, signal.SIGCONT)
    own.get_by_text("The broker does not reply.").wait_for(state="hidden")
    context.close()


def test_page_of_a_broker_that_is_killed_returns_with_it(site: Site) -> None:
    """`tiered up` starts a broker again that was killed, at its address."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

    context = site.browser.new_context()
    page = context.new_page()
    page.set_default_timeout(90_000)
    page.goto(f"{site.urls[1]}/console/topics/orders")
    page.get_by_text("Partition 2").wait_for()
    page.wait_for_function("performance.getEntriesByName(location.origin + '/tiered/v1/cluster').length > 0")
    said = page.get_by_text("The broker does not reply.")
    while not said.is_visible():  # a broker may be back before the page asks again; each time it is away for longer
        if len(pids := site.cluster.pids()) == 3:
            os.kill(pids[1], signal.SIGKILL)
        with suppress(PlaywrightTimeoutError):
            said.wait_for(timeout=3_000)
    assert page.get_by_role("link", name="broker 1").get_attribute("href") == f"{site.urls[0]}/console/topics/orders"
    assert page.get_by_text("Partition 2").count(), "the last state stays beside the error"
    said.wait_for(state="hidden")
    page.locator("svg.tiers").nth(2).wait_for()
    context.close()


def test_metadata_page_shows_controllers_and_goes_back_in_pages(site: Site) -> None:
    for number in range(60):  # a page has fifty entries
        site.set_config("empty", "retention.ms", str(86_400_000 + number))
    with site.page("metadata") as page:
        controllers = page.get_by_role("table", name="Controllers")
        controllers.get_by_role("cell", name="now").wait_for()
        log = page.get_by_role("table", name="Metadata log")
        change = log.locator("summary", has_text="topic config changed: empty").first
        change.press("Enter")
        log.get_by_text('{"retention.ms":"86400059"}').first.wait_for()
        newest = log.get_by_role("row").nth(1).get_by_role("cell").first.text_content() or ""
        page.get_by_role("button", name="Older").click()
        page.wait_for_function(
            "slot => (document.querySelector('[aria-label=\"Metadata log\"] tbody td')?.textContent ?? slot) !== slot",
            arg=newest,
        )
        assert "?to=" in page.url
        page.get_by_role("button", name="Newest").click()
        log.get_by_text("topic config changed: empty").first.wait_for()


def test_markup_in_the_metadata_log_is_text(site: Site) -> None:
    site.tiered("quota", "set", "--user", MARKUP, "producer_byte_rate=1000000000")
    with site.page("metadata") as page:
        entry = page.locator("summary", has_text="client quota set").first
        assert MARKUP in (entry.text_content() or "")
        entry.click()
        page.locator("dd", has_text="<script>").first.wait_for()


def test_record_is_found_in_all_partitions_and_its_place_told(site: Site) -> None:
    with site.page("topics/orders/messages?partition=all&from=start&filter=%22id%22%3A7%2C") as page:
        page.get_by_text(f"1 record of {RECORDS:,} scanned in 3 partitions").wait_for()
        row = page.get_by_role("table", name="Records").get_by_role("row").nth(1)
        place = row.get_by_role("cell")
        partition, offset = place.nth(0).text_content(), place.nth(1).text_content()
        row.get_by_role("button").click()
        shown = page.locator("button[aria-expanded]").first
        shown.wait_for()
        assert shown.text_content() == offset
        assert page.get_by_label("Partition").first.input_value() == partition
        shown.click()
        page.get_by_role("link", name="where it is stored").click()
        region = page.get_by_role("region", name=f"Segment of partition {partition}")
        region.get_by_text("Offsets", exact=False).first.wait_for()
        assert f"?pick={partition}%3A{offset}" in page.url or f"?pick={partition}:{offset}" in page.url


def test_filter_on_the_newest_records_offers_the_older_ones(site: Site) -> None:
    for partition in ("all", "0", "1", "2"):
        with site.page(f"topics/orders/messages?partition={partition}&filter=%22id%22%3A7%2C") as page:
            page.get_by_text("This searched the newest 200 records of each partition that you chose").wait_for()
            page.get_by_role("button", name="Search from the start").click()
            page.wait_for_function("location.search.includes('from=start')")
            page.get_by_text("This searched the newest").wait_for(state="detached")
            if partition == "all":
                page.get_by_text("1 record of").wait_for()


def test_health_says_what_to_do_and_what_a_caller_does_not_see(site: Site) -> None:
    with site.page("topics") as page:
        reply = page.request.get(f"{site.urls[0]}/tiered/v1/cluster").json()
        sick = reply | {
            "healthy": False,
            "reasons": ["bucket", "nodes down"],
            "broker_problems": ["broker 1: no store"],
        }
        page.route("**/tiered/v1/cluster", lambda route: route.fulfill(json=sick))
        page.goto(f"{site.urls[0]}/console/")
        alert = page.get_by_role("alert")
        alert.get_by_text("Bucket, nodes down.").wait_for()
        alert.get_by_text("Start the brokers that are not live.").wait_for()
        alert.get_by_text("Look at the network, the credentials and the rights of the store.").wait_for()
        page.unroute("**/tiered/v1/cluster")
        partial = reply | {"healthy": True, "partial": True, "hidden": ["one thing", "no other"]}
        page.route("**/tiered/v1/cluster", lambda route: route.fulfill(json=partial))
        page.goto(f"{site.urls[0]}/console/")
        page.get_by_text("You see one thing. You see no other.").wait_for()


def test_long_names_and_odd_bytes_leave_each_column_in_sight(site: Site) -> None:
    name = "n" * 249
    site.tiered("topic", "create", name)
    producer = confluent_kafka.Producer({"bootstrap.servers": site.cluster.kafka[0]})
    headers: list[tuple[str, str | bytes | None]] = [
        ("city", "Zürich مرحبا".encode()),
        ("raw", b"\xff\xfe"),
        ("none", None),
    ]
    producer.produce(name, key=b"\xff\xfek", value="x" * 100_000, headers=headers)
    assert producer.flush(SECONDS) == 0
    site.tiered("topic", "consume", name, "-g", "g" * 249, "-n", "1")
    for path in ("topics", "groups", f"topics/{name}?tab=groups", f"groups/{'g' * 249}"):
        with site.page(path) as page:
            page.get_by_text(("g" if "groups" in path else "n") * 249).first.wait_for()
            right = "[...document.querySelectorAll('thead th')].map((each) => each.getBoundingClientRect().right)"
            page.wait_for_function(f"{right}.length > 0")
            assert max(page.evaluate(right)) <= 1280
    with site.page(f"topics/{name}/messages?partition=0&from=start") as page:
        page.locator("button[aria-expanded]").click()
        for text in ("Zürich مرحبا", "//4=", "100,000 characters", "//5r"):
            page.get_by_text(text, exact=False).first.wait_for()
