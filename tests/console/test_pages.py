"""Tests of the console's pages in a browser, on three brokers with records in both tiers.

Each page fails its test if it reports an error, asks another host for anything, or runs text of a record.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import confluent_kafka
import pytest

from tests.console.site import MARKUP, RECORDS, WAIT_MS, Site, open_site
from tests.e2e.serving import SECONDS
from tests.e2e.test_up import start_up

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

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
    "groups/billing": "The lag in records does not change",
}


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster of `tiered up`, which starts a broker again that a test kills."""
    with open_site(browser, tmp_path_factory.mktemp("console"), start_up) as opened:
        yield opened


def test_rates_of_records_and_the_requests_to_the_bucket_are_shown(site: Site) -> None:
    with site.visit("") as page:
        page.locator("svg.curve").wait_for()
        row = page.get_by_role("table", name="Requests to the bucket").get_by_role("row", name="segments")
        row.get_by_role("cell").nth(1).filter(has_text=re.compile("[1-9]")).wait_for()
        site.tiered("topic", "create", "rates", "-p", "1")
        end = time.monotonic() + SECONDS
        while "KiB/s" not in (page.locator("svg.curve").get_attribute("aria-label") or ""):
            assert time.monotonic() < end
            site.produce("rates", [{"key": "rate", "value": "y" * 20_000}])
            page.wait_for_timeout(300)


def test_bars_of_the_tiers_are_those_of_the_interface(site: Site) -> None:
    with site.visit("topics/orders") as page:
        page.locator("svg.tiers rect.bucket").first.wait_for()
        words = page.locator("svg.tiers").first.get_attribute("aria-label") or ""
        assert words.startswith("Partition 0: ") and "in the bucket" in words and "on disk alone" in words
        assert page.locator("svg.tiers rect.position title").first.text_content().startswith("billing: ")  # type: ignore[union-attr]
        page.locator(".names").get_by_role("link", name="billing").first.wait_for()
        page.get_by_text("Written now").wait_for()


def test_part_that_compaction_has_cleaned_is_on_the_bar(site: Site) -> None:
    with site.page("topics") as page:
        reply = page.request.get(f"{site.urls[0]}/tiered/v1/topics/orders/storage").json()
        reply["partitions"][1]["cleaned_to_offset"] = 500
        page.route("**/topics/orders/storage", lambda route: route.fulfill(json=reply))
        page.goto(f"{site.urls[0]}/console/topics/orders")
        page.get_by_text("cleaned by compaction", exact=True).wait_for()
        labels = [each.get_attribute("aria-label") or "" for each in page.locator("svg.tiers").all()]
        assert ["cleaned by compaction up to 500" in each for each in labels] == [False, True, False]
        assert page.locator("svg.tiers line.cleaned").count() == 1


def test_rate_is_of_half_a_minute_and_a_time_of_a_day_that_is(site: Site) -> None:
    """A producer that writes every few seconds had a rate between 0 and the double."""
    with site.visit("topics/orders") as page:
        script = "looks => import('/console/static/curve.js').then(curve => curve.rateOver(looks))"
        steady = [[second * 1_000, second // 4 * 4_000] for second in range(0, 122, 2)]
        assert abs(page.evaluate(script, steady) - 1_000) < 200
        began_anew = [[0, 9_000], [2_000, 9_500], [4_000, 100], [6_000, 300]]
        assert page.evaluate(script, began_anew) == 100
        assert page.evaluate(script, steady[:1]) is None
        script = "times => import('/console/static/format.js').then(format => times.map(format.parseTime))"
        noon = 1_796_040_000_000
        assert page.evaluate(script, ["2026-11-30 12:00", "2026-11-30T12:00:00.5"]) == [noon, noon + 500]
        assert all(math.isnan(each) for each in page.evaluate(script, ["2026-02-31", "2026-13-01", "2026-11-30 25:00"]))


def test_names_of_groups_share_the_room_above_a_bar(site: Site) -> None:
    with site.page("topics/orders") as page:
        script = "marks => import('/console/static/tiers.js').then(tiers => tiers.labelRows(marks))"
        apart = page.evaluate(script, [["right", 990], ["left", 0], ["middle", 500]])
        assert apart == [["left", 0, 0, False], ["middle", 500, 0, False], ["right", 990, 0, True]]
        crowd = page.evaluate(script, [[f"group-{number}", 300] for number in range(200)])
        assert [row for _, _, row, _ in crowd] == [0, 1, 2], "three rows of names at most"


def test_group_says_once_that_its_curves_begin_soon(site: Site) -> None:
    with site.page("groups/billing") as page:
        page.get_by_role("table", name="Lag by partition").wait_for()
        assert page.get_by_text("The curve begins with the next look").count() <= 1
        page.get_by_label("Why is this group so?").press("Enter")
        page.get_by_role("list", name="Reasons of this group").get_by_text(
            "Group billing has no members"
        ).first.wait_for()


def test_search_finds_a_record_in_the_bucket_and_its_address_keeps_it(site: Site) -> None:
    found = []
    for partition in range(3):
        with site.visit(f"topics/orders/messages?partition={partition}&from=start&filter=%22id%22%3A0%2C") as page:
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


def test_markers_of_transactions_are_shown_on_request(site: Site) -> None:
    site.tiered("topic", "create", "ended", "-p", "1")
    settings = {"bootstrap.servers": ",".join(site.cluster.kafka), "transactional.id": "ended-orders"}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(60)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("ended", b"one")
        producer.flush(60)
        end(60)
    with site.page("topics/ended/messages") as page:
        page.get_by_text("1 record of").wait_for()
        page.get_by_label("markers of transactions").check()
        page.get_by_text("3 records of").wait_for()
        assert page.url.endswith("?control=1")
        table = page.get_by_role("table", name="Records")
        words = [each.text_content() or "" for each in table.locator("tbody tr td:last-child").all()]
        assert [each.split(" ")[0] for each in words] == ["Abort", "Commit", "one"]
        with site.page(page.url.partition("/console/")[2] + "&partition=all") as again:
            again.get_by_text("3 records of").wait_for()
            again.get_by_text("Abort of producer").wait_for()
        page.get_by_label("Contains").fill("one")
        assert page.get_by_label("markers of transactions").is_disabled()
        page.get_by_role("button", name="Read", exact=True).click()
        page.get_by_text("1 record of").wait_for()


def test_text_of_records_is_shown_as_text(site: Site) -> None:
    shown = 0
    for partition in range(3):
        with site.visit(f"topics/orders/messages?partition={partition}&from=start&filter=script") as page:
            page.get_by_text("scanned;").wait_for()
            for each in page.locator("tbody button[aria-expanded]").all():
                each.click()
            shown += page.get_by_text(MARKUP).count()
    assert shown > RECORDS // 100


def test_text_that_turns_what_follows_is_shown_with_escapes(site: Site) -> None:
    turned, escaped = "abc\u202edef", r"abc\u202edef"
    site.tiered("topic", "create", "turned", "-p", "1")
    producer = confluent_kafka.Producer({"bootstrap.servers": site.cluster.kafka[0]})
    producer.produce(
        "turned", key=turned, value=json.dumps({turned: turned}, ensure_ascii=False), headers={turned: turned}
    )
    assert producer.flush(SECONDS) == 0
    site.tiered("topic", "consume", "turned", "-g", turned, "-n", "1")
    with site.page("topics/turned/messages") as page:
        page.locator("tbody button[aria-expanded]").click()
        whole = page.locator("tr.whole")
        for place in (
            page.get_by_role("cell", name=escaped, exact=True),
            whole.locator(".tree .name"),
            whole.locator("dt code"),
        ):
            assert place.first.text_content() == escaped
        assert page.locator("main").inner_text().count(turned) == 0
    with site.page("groups") as page:
        link = page.get_by_role("link", name=turned)
        assert link.evaluate("each => getComputedStyle(each).unicodeBidi") == "isolate"
        link.click()
        page.get_by_role("heading", name=escaped).wait_for()
        quoted = page.evaluate(
            "text => import('/console/static/copy.js').then(copy => copy.quoted(text))", f"it's {turned}"
        )
        assert quoted == rf"$'it\'s {escaped}'"


def test_value_is_shown_as_tree_text_hex_and_base64(site: Site) -> None:
    site.tiered("topic", "create", "shown", "-p", "1")
    site.produce("shown", [{"key": "forms", "value": {"deep": {"er": {"list": [1, MARKUP]}}, "many": [*range(150)]}}])
    with site.page("topics/shown/messages") as page:
        page.locator("tbody button[aria-expanded]").click()
        tree = page.locator("tr.whole .tree").first
        tree.get_by_text("and 50 others").wait_for()
        tree.get_by_text("1 field").last.click()
        tree.get_by_text("2 items").click()
        tree.get_by_text(json.dumps(MARKUP)).wait_for()
        form = page.get_by_label("Show value as")
        form.select_option("hex")
        page.get_by_text("00000000  7b 22 64 65 65 70 22").wait_for()
        form.select_option("base64")
        page.get_by_text(base64.b64encode(b'{"deep":').decode()[:10]).wait_for()
        form.select_option("text")
        page.locator("tr.whole pre", has_text='{"deep":{"er"').wait_for()


def test_live_page_shows_a_record_that_is_written_now(site: Site) -> None:
    with site.visit("topics/empty/messages") as page:
        page.get_by_role("button", name="Live").click()
        page.get_by_text("Live: 0 records").wait_for()
        produce_until_shown(site, page, [{"key": "now", "value": 1}], "now")
        assert page.get_by_label("Contains").is_disabled(), "a live page keeps its filters"


def test_live_page_has_only_records_that_fit_its_filters(site: Site) -> None:
    with site.visit("topics/empty/messages?json=%24.wanted") as page:
        page.get_by_role("button", name="Live").click()
        page.get_by_text("Live: 0 records").wait_for()
        records: list[dict[str, Any]] = [{"key": "not", "value": 1}, {"key": "this", "value": {"wanted": 1}}]
        produce_until_shown(site, page, records, "this")
        assert not page.get_by_role("cell", name='"not"', exact=True).count()


def produce_until_shown(site: Site, page: Page, records: list[dict[str, Any]], key: str) -> None:
    """Writes records to `empty` until a page that follows it shows a key: its stream may begin after some of them."""
    end = time.monotonic() + SECONDS
    while not page.get_by_role("cell", name=key).count():
        assert time.monotonic() < end
        site.produce("empty", records)
        page.wait_for_timeout(200)


def test_record_is_written_and_its_reads_elsewhere_are_told(site: Site) -> None:
    site.tiered("topic", "create", "written", "-p", "1")
    with site.visit("topics/written/messages?from=start") as page:
        page.get_by_text("Write a record").click()
        page.get_by_label("Key", exact=True).fill("written")
        page.locator("textarea").fill("by hand")
        page.get_by_role("button", name="Write", exact=True).click()
        page.get_by_text("Written to partition 0 at offset").wait_for()
        page.get_by_role("cell", name="by hand").wait_for()  # the page reads again
        assert page.locator("textarea").input_value() == "", "the form is ready for another record"
        page.get_by_role("cell", name="by hand").locator("xpath=..").get_by_role("button").click()
        page.get_by_text("The same in other tools").click()
        told = page.locator("details pre").all_text_contents()
        assert len(told) == 5 and all("written" in each for each in told)
        kcat = f"kcat -b {','.join(site.cluster.kafka)} -C -t 'written' -p 0 -o 0 -c 1"
        page.locator("details pre").get_by_text(kcat, exact=True).wait_for()


def test_commands_name_the_brokers_once_these_are_known(site: Site) -> None:
    gate: list[Route] = []
    with site.page("topics") as page:
        page.route("**/tiered/v1/cluster", lambda route: gate.append(route))
        page.goto(f"{site.urls[0]}/console/topics/orders/messages")
        page.locator("tbody button[aria-expanded]").first.click()
        page.locator("details pre", has_text="kcat -b HOST:PORT").wait_for(state="attached")
        for each in gate:
            each.continue_()
        page.locator("details pre", has_text=f"kcat -b {','.join(site.cluster.kafka)}").wait_for(state="attached")


def test_record_is_written_with_the_bytes_that_were_typed(site: Site) -> None:
    """A number beyond 53 bits, a double without a fraction and a name that stands twice pass no JSON reader."""
    site.tiered("topic", "create", "typed", "-p", "1")
    exact = '{"b": 12345678901234567890, "a": 1.0, "a": 2}'
    with site.visit("topics/typed/messages?from=start") as page:
        page.get_by_text("Write a record").click()
        for offset, (form, value) in enumerate((("JSON", exact), ("text", ""), ("null: it deletes its key", None))):
            page.get_by_label("Key", exact=True).fill("k")
            page.get_by_label("Value is").select_option(form)
            if value is not None:
                page.locator("textarea").fill(value)
            page.get_by_role("button", name="Write", exact=True).click()
            page.get_by_text(f"Written to partition 0 at offset {offset}.").wait_for()
        page.get_by_text("3 records of").wait_for()
        page.get_by_label("Value is").select_option("JSON")
        page.locator("textarea").fill("{'no': 1}")
        page.get_by_role("button", name="Write", exact=True).click()
        page.get_by_text("The value is no JSON").wait_for()
        page.locator("tbody button[aria-expanded]").first.click()
        shown = page.locator("tr.whole .tree li li").all_text_contents()
        assert shown == ["b: 12345678901234567890", "a: 1.0", "a: 2"]
    with urlopen(f"{site.urls[0]}/topics/typed/partitions/0/records?offset=0", timeout=SECONDS) as reply:
        assert [each["value"] for each in json.load(reply)["records"]] == [exact, "", None]


def test_links_of_the_head_have_one_row_and_the_broker_its_name(site: Site) -> None:
    with site.visit("topics/orders") as page:
        caller = page.locator("#caller")
        caller.get_by_text("broker 1", exact=True).wait_for()
        tops = "[...document.querySelectorAll('nav a')].map((each) => each.getBoundingClientRect().top)"
        assert len(set(page.evaluate(tops))) == 1
        assert caller.evaluate("each => each.scrollWidth <= each.clientWidth"), "the caller is cut"


def test_keyboard_alone_reaches_a_topic(site: Site) -> None:
    with site.visit("") as page:
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
        page = site.open_window()
        page.goto(f"{site.urls[0]}/console/{path}")
        page.get_by_text(words).first.wait_for()
        page.context.close()


@pytest.mark.also("tests/console/test_lost_broker.py::test_page_of_a_killed_broker_goes_on_with_another")
def test_page_of_a_broker_that_goes_names_the_others_and_returns(site: Site) -> None:
    pid = site.cluster.pids()[2]
    context = site.browser.new_context()
    own, other = context.new_page(), context.new_page()
    for page, url in ((own, site.urls[2]), (other, site.urls[0])):
        page.set_default_timeout(WAIT_MS)
        page.goto(f"{url}/console/")
        page.get_by_text("Healthy.").wait_for()
    own.wait_for_function("() => performance.getEntriesByName(location.origin + '/tiered/v1/cluster').length > 1")
    os.kill(pid, signal.SIGSTOP)
    try:
        own.get_by_role("button", name="Stay").click()
        own.get_by_text("The broker does not reply.").wait_for()
        assert own.get_by_role("link", name="broker 1").get_attribute("href") == f"{site.urls[0]}/console/"
        other.get_by_text("Not healthy.").wait_for()
    finally:
        os.kill(pid, signal.SIGCONT)
    own.get_by_text("The broker does not reply.").wait_for(state="hidden")
    context.close()


@pytest.mark.also("tests/console/test_lost_broker.py::test_page_stays_when_its_broker_is_back")
def test_page_of_a_broker_that_is_killed_returns_with_it(site: Site) -> None:
    """`tiered up` starts a broker again that was killed, at its address."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

    page = site.open_window()
    page.goto(f"{site.urls[1]}/console/topics/orders")
    page.get_by_text("Partition 2").wait_for()
    page.wait_for_function("() => performance.getEntriesByName(location.origin + '/tiered/v1/cluster').length > 0")
    script = """() => {
        const links = [...document.querySelectorAll(".error a")].map((each) => [each.textContent, each.href]);
        if (!links.length) return null;
        document.querySelectorAll(".lost button").forEach((each) => each.click());
        return [links, document.querySelector("main").textContent];
    }"""  # in one step: the broker may be back before the next one
    shown = None
    while shown is None:  # a broker may be back before the page asks again; each time it is away for longer
        if len(pids := site.cluster.pids()) == 3:
            os.kill(pids[1], signal.SIGKILL)
        with suppress(PlaywrightTimeoutError):
            shown = page.wait_for_function(script, timeout=3_000).json_value()
    links, text = shown
    assert ["broker 1", f"{site.urls[0]}/console/topics/orders"] in links
    assert "The broker does not reply." in text and "Partition 2" in text, "the last state stays beside the error"
    page.get_by_text("The broker does not reply.").wait_for(state="hidden")
    page.locator("svg.tiers").nth(2).wait_for()
    page.context.close()


def test_metadata_page_shows_controllers_and_goes_back_in_pages(site: Site) -> None:
    for number in range(60):  # a page has fifty entries
        site.set_config("empty", "retention.ms", str(86_400_000 + number))
    with site.visit("metadata") as page:
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
    with site.visit("metadata") as page:
        entry = page.locator("summary", has_text="client quota set").first
        assert MARKUP in (entry.text_content() or "")
        entry.click()
        page.locator("dd", has_text="<script>").first.wait_for()


def test_record_is_found_in_all_partitions_and_its_place_told(site: Site) -> None:
    with site.visit("topics/orders/messages?partition=all&from=start&filter=%22id%22%3A7%2C") as page:
        page.get_by_text(f"1 record of {RECORDS:,} scanned in 3 partitions").wait_for()
        row = page.get_by_role("table", name="Records").get_by_role("row").nth(1)
        place = row.get_by_role("cell")
        partition, offset = place.nth(0).text_content(), place.nth(1).text_content()
        row.get_by_role("button").click()
        shown = page.locator("tbody button[aria-expanded]").first
        shown.wait_for()
        assert shown.text_content() == offset
        assert page.get_by_label("Partition").first.input_value() == partition
        page.get_by_role("link", name="where it is stored").click()
        region = page.get_by_role("region", name=f"Segment of partition {partition}")
        region.get_by_text("Offsets", exact=False).first.wait_for()
        assert f"?pick={partition}%3A{offset}" in page.url or f"?pick={partition}:{offset}" in page.url


def test_filter_from_the_end_finds_the_oldest_record_too(site: Site) -> None:
    found = list[int]()
    for partition in ("0", "1", "2", "all"):
        with site.visit(f"topics/orders/messages?partition={partition}&filter=%22id%22%3A7%2C") as page:
            page.locator("p[role=status]", has_text="scanned").filter(has_not_text="…").wait_for()
            found.append(page.locator("table[aria-label=Records] tbody tr").count())
    assert sorted(found[:3]) == [0, 0, 1] and found[3] == 1


def test_newest_records_come_first_and_the_page_before_them_follows(site: Site) -> None:
    with site.page("topics/orders/messages?filter=note") as page:
        first = shown_offsets(page, "200 records of")
        assert first == sorted(first, reverse=True)
        page.get_by_role("button", name=f"Read on before {first[-1]:,}").click()
        page.wait_for_function(f"() => location.search.includes('from=before&at={first[-1]}')")
        page.get_by_role("button", name=f"{first[-1] - 1:,}", exact=True).wait_for()
        assert shown_offsets(page, "200 records of") == [offset - 200 for offset in first]
        address = page.url.partition("/console/")[2]
    with site.page(address) as again:
        assert shown_offsets(again, "200 records of")[0] == first[-1] - 1


def test_search_of_all_partitions_is_newest_first_and_stops_where_it_was(site: Site) -> None:
    with site.page("topics/orders/messages?partition=all&filter=note") as page:
        times = shown_times(page, "200 records of")
        assert times == sorted(times, reverse=True)
        page.get_by_role("button", name="Search on").click()
        longer = shown_times(page, "400 records of")
        assert longer and longer == times[: len(longer)], "a long table has the rows in sight alone"
        gate = threading.Event()
        page.route("**/records?*", lambda route: route.continue_() if gate.is_set() else None)
        page.get_by_label("Contains").fill("absent")
        page.get_by_role("button", name="Read", exact=True).click()
        page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_text("No record fits so far.").wait_for()
        gate.set()
        page.get_by_role("button", name="Search on").click()
        page.get_by_text(f"0 records of {RECORDS:,} scanned in 3 partitions").wait_for()
        page.get_by_text("No record fits.", exact=True).wait_for()


def shown_offsets(page: Page, words: str) -> list[int]:
    """Returns the offsets of the records on the page, once it says the words and searches no more."""
    page.locator("p[role=status]", has_text=words).filter(has_not_text="…").wait_for()
    return [int(each.replace(",", "")) for each in page.locator("tbody button[aria-expanded]").all_text_contents()]


def shown_times(page: Page, words: str) -> list[str]:
    """Returns the times of the records of a search, once the page says the words and searches no more."""
    page.locator("p[role=status]", has_text=words).filter(has_not_text="…").wait_for()
    return page.locator("table[aria-label=Records] tbody tr td:nth-child(3)").all_text_contents()


def test_table_below_a_long_one_is_shown_to_its_end(site: Site) -> None:
    """Rows out of sight are left out. A table that ended above the window grew without end, and hid what follows."""
    with site.page("topics") as page:
        reply = page.request.get(f"{site.urls[0]}/tiered/v1/groups/billing").json()
        one = reply["partitions"][0]
        reply["partitions"] = [one | {"partition": number} for number in range(1_100)]
        member = {"client_id": "worker", "host": "/10.0.0.1", "partitions": list[str](), "instance_id": None}
        reply["members"] = [member | {"member_id": f"member-{number}"} for number in range(1_200)]
        page.route("**/tiered/v1/groups/billing", lambda route: route.fulfill(json=reply))
        page.goto(f"{site.urls[0]}/console/groups/billing")
        page.get_by_role("table", name="Members").wait_for()
        height = page.evaluate("document.documentElement.scrollHeight")
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.get_by_text("member-1199").wait_for()
        assert abs(page.evaluate("document.documentElement.scrollHeight") - height) < 200
        page.evaluate("scrollTo(0, 0)")
        page.get_by_role("table", name="Lag by partition").get_by_role("row").nth(1).wait_for()


def test_health_says_what_to_do_and_what_a_caller_does_not_see(site: Site) -> None:
    with site.page("topics") as page:
        reply = page.request.get(f"{site.urls[0]}/tiered/v1/cluster").json()
        sick = reply | {
            "healthy": False,
            "reasons": ["bucket", "nodes down"],
            "broker_problems": ["broker 1: no store"],
            "partitions": [
                {"topic": "orders", "partition": number, "problems": ["leaderless"], "leader": None, "isr": []}
                | {"since_ms": since_ms, "why": "waits"}
                for number, since_ms in enumerate((1_700_000_000_000, None))
            ],
        }
        page.route("**/tiered/v1/cluster", lambda route: route.fulfill(json=sick))
        page.goto(f"{site.urls[0]}/console/")
        alert = page.get_by_role("alert")
        alert.get_by_text("Bucket, nodes down.").wait_for()
        alert.get_by_text("Start the brokers that are not live.").wait_for()
        alert.get_by_text("Look at the network, the credentials and the rights of the store.").wait_for()
        rows = page.get_by_role("table", name="Unhealthy partitions").get_by_role("row")
        assert ["2023-11-14 22:13:20" in each for each in rows.all_inner_texts()] == [False, True, False]
        assert "Since" in rows.nth(0).inner_text() and "\t\N{EN DASH}\t" in rows.nth(2).inner_text()
        page.unroute("**/tiered/v1/cluster")
        partial = reply | {"healthy": True, "partial": True, "hidden": ["one thing", "no other"]}
        page.route("**/tiered/v1/cluster", lambda route: route.fulfill(json=partial))
        page.goto(f"{site.urls[0]}/console/")
        page.get_by_text("You see one thing. You see no other.").wait_for()


def test_long_names_and_odd_bytes_leave_each_column_in_sight(site: Site) -> None:
    name = "n" * 249
    site.tiered("topic", "create", name)
    with site.page(f"transactions?topic={name}") as page:
        page.get_by_text("The topic has no open transaction.").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than its window"
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
            page.wait_for_function(f"() => {right}.length > 0")
            assert max(page.evaluate(right)) <= 1280
    with site.page(f"topics/{name}/messages?partition=0&from=start") as page:
        page.locator("tbody button[aria-expanded]").click()
        for text in ("Zürich مرحبا", "//4=", "100,000 bytes", "//5r"):
            page.get_by_text(text, exact=False).first.wait_for()
