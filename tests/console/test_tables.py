"""Tests of the pages of tables and costs in a browser, and of what is loaded on the bars of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console.site import MARKUP, Site, open_site
from tests.console.test_accessibility import check_frame, check_page, wait_for_replies
from tests.console.warehouse import STRANGE, fill_warehouse

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGES = {
    "tables": "orders__dead",
    "tables/orders": "The reasons of the newest 3 dead letters.",
    "tables/orders__dead": "dead letters table",
    "tables/damaged": "The table cannot be shown",
    "topics/orders": "loaded into the Delta table",
    "costs": "Yesterday",
    "costs?days=31": "31 days",
}


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster of its own, whose tables cannot all be read."""
    with open_site(browser, tmp_path_factory.mktemp("tables")) as opened:
        fill_warehouse(opened)
        yield opened


@pytest.mark.parametrize("path", PAGES)
def test_page_shows_its_subject_and_axe_finds_nothing_grave(site: Site, path: str) -> None:
    with site.visit(path) as page:
        page.get_by_text(PAGES[path]).first.wait_for(state="attached")
        wait_for_replies(page)
        check_frame(page)
        check_page(page)


def test_lag_and_loaded_part_of_a_topic_are_those_of_the_interface(site: Site) -> None:
    site.write_to_open_segment(0)
    with site.visit("topics/orders") as page:
        page.locator("svg.tiers line.loaded").first.wait_for(state="attached")
        words = page.locator("svg.tiers").first.get_attribute("aria-label") or ""
        loaded = int(words.partition("loaded into its table up to ")[2].replace(",", ""))
        page.get_by_role("link", name="orders", exact=True).click()
        row = page.get_by_role("table", name="Partitions").get_by_role("row").nth(1).get_by_role("cell")
        assert row.nth(1).text_content() == f"{loaded:,}" and loaded > 0
        lag, end = (int((row.nth(at).text_content() or "").replace(",", "")) for at in (3, 2))
        assert lag == end - loaded > 0
        page.get_by_label("Why is this table so?").press("Enter")
        page.get_by_role("list", name="Reasons of this table").get_by_text("Table orders is behind by").wait_for()
    told = site.tiered("topic", "describe-storage", "orders", "--format", "json")
    rows = [json.loads(line) for line in told.splitlines()]
    assert rows[0]["loaded_offset"] == loaded and rows[0]["groups"].keys() == {"billing"}


def test_list_leads_to_a_table_its_reasons_and_a_dead_record(site: Site) -> None:
    with site.visit("tables") as page:
        page.get_by_role("searchbox").fill("orders")
        page.get_by_role("link", name="orders", exact=True).first.click()
        reasons = page.get_by_role("table", name="Reasons of dead letters")
        row = reasons.get_by_role("row").nth(1).get_by_role("cell")
        assert row.nth(0).text_content() == MARKUP and row.nth(1).text_content() == "2"
        page.get_by_label("Newest").select_option("50")
        page.wait_for_function("() => location.search === '?versions=50'")
        page.get_by_role("table", name="Versions").get_by_role("cell", name="load").first.wait_for()
        page.get_by_text("The same by a command").click()
        assert "tiered verify --store STORE --topic 'orders'" in (page.locator("details pre").last.text_content() or "")
        reasons.get_by_role("link", name="partition 0, offset").click()
        page.get_by_role("table", name="Records").wait_for()


def test_names_of_strangers_are_text(site: Site) -> None:
    with site.page("tables") as page:
        page.get_by_role("link", name=STRANGE).click()
        page.get_by_text("It holds no topic.").wait_for()
        assert page.locator("h1").text_content() == f"Table {STRANGE}"
        assert page.get_by_role("table", name="Columns").get_by_role("cell").first.text_content() == STRANGE
        assert page.get_by_role("cell", name=STRANGE).count() >= 2
    with site.page("tables") as page:
        page.get_by_text("damaged is not shown").wait_for()
        page.locator(".state.away", has_text="unreadable").first.wait_for()


def test_costs_of_a_day_are_its_use_at_the_prices(site: Site) -> None:
    with site.visit("costs") as page:
        page.get_by_text("2024-04-29", exact=True).wait_for()
        assert page.locator("table[aria-label=Days] button[aria-pressed=true]").count() == 1
        page.get_by_text("of other commands on the store and for tables are not in them.").wait_for()
        first = page.locator("table[aria-label=Days] tbody button").first
        today = first.text_content()
        first.click()
        page.get_by_role("heading", name=today or "").wait_for()
        bill = page.get_by_role("table", name=f"Use of the bucket on {today}")
        page.get_by_text("Broker 3 counts since the hour that began at").wait_for()
        cells = bill.get_by_role("row", name="Small writes").get_by_role("cell").all_text_contents()
        requests, cost = int(cells[1].replace(",", "")), float(cells[3].removesuffix(" USD"))
        assert requests > 0 and abs(cost - requests * 0.005 / 1000) < cost / 10
        assert f"day={today}" in page.url


def test_stored_bytes_of_a_day_are_their_average(site: Site) -> None:
    with site.page("topics") as page:
        reply = page.request.get(f"{site.urls[0]}/tiered/v1/costs?days=8").json()
        reply["days"][1]["stored_gib_hours"] = 48.0
        page.route("**/tiered/v1/costs?*", lambda route: route.fulfill(json=reply))
        for each in reply["brokers"]:
            each["since_ms"] -= 3 * 86_400_000
        page.goto(f"{site.urls[0]}/console/costs?day={reply['days'][1]['day']}")
        bill = page.get_by_role("table", name=f"Use of the bucket on {reply['days'][1]['day']}")
        assert (
            bill.get_by_role("row", name="Stored, on average of 24 hours").get_by_role("cell").nth(2).text_content()
            == "2.0 GiB"
        )
        days = page.get_by_role("table", name="Days").get_by_role("row", name=reply["days"][1]["day"])
        assert days.get_by_role("cell").nth(3).text_content() == "2.0 GiB"
