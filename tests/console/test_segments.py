"""Tests of a topic's page in a browser: segments in words, bars over time, and names with markup."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.request import urlopen

from tests.console.site import MARKUP, Site, find_segments
from tests.e2e.serving import SECONDS

if TYPE_CHECKING:
    from playwright.sync_api import Page


def show_segment(page: Page, partition: int) -> str:
    """Returns the words of the segment that is shown."""
    region = page.get_by_role("region", name=f"Segment of partition {partition}")
    region.get_by_text("First records").wait_for()
    return region.text_content() or ""


def test_click_on_a_bar_shows_the_segment_and_its_first_records(site: Site) -> None:
    first = find_segments(site, 0)[0]
    with site.visit("topics/orders") as page:
        page.locator("svg.tiers rect.bucket").first.wait_for()
        page.locator("svg.tiers").first.click(position={"x": 3, "y": 15})
        words = show_segment(page, 0)
        assert f"Offsets 0 to {first['end_offset'] - 1} of partition 0" in words and ": in the bucket." in words
        assert first["object"]["key"] in words and "Why it is still" not in words
        records = page.get_by_role("table", name="First records")
        records.get_by_role("cell", name="0", exact=True).wait_for()
        page.locator("svg.tiers rect.picked").wait_for(state="attached")
        page.locator("svg.tiers").first.click(position={"x": 5, "y": 15})
        page.wait_for_function("() => location.search.startsWith('?pick=0%3A') && location.search !== '?pick=0%3A0'")
        page.locator("svg.tiers rect.picked").wait_for(state="attached")
        page.get_by_role("link", name="Read on from 0").click()
        page.get_by_text("records of").wait_for()


def test_last_segment_says_why_it_is_on_the_disk(site: Site) -> None:
    site.write_to_open_segment(1)
    last = find_segments(site, 1)[-1]
    with site.visit(f"topics/orders?pick=1:{last['base_offset']}") as page:
        words = show_segment(page, 1)
        assert last["why_local"] in words and last["why_local"].startswith("it is open")
        assert "on the disks of brokers 1, 2, 3" in words
        page.get_by_label("Why is this segment so?").press("Enter")
        page.get_by_text(f"The leader's disk has it because {last['why_local']}.").wait_for()
        page.get_by_label("Why is partition 0 so?").press("Enter")
        page.get_by_text("Broker 1 leads partition orders/0, and 3 of 3 replicas are in sync.").wait_for()
        page.get_by_role("button", name="Next segment", disabled=True).wait_for()


def test_keyboard_goes_from_segment_to_segment(site: Site) -> None:
    rows = find_segments(site, 2)
    with site.visit("topics/orders") as page:
        page.get_by_role("button", name="Segments").last.press("Enter")
        assert f"Offsets 0 to {rows[0]['end_offset'] - 1} " in show_segment(page, 2).replace(",", "")
        page.get_by_role("button", name="Next segment").press("Enter")
        assert page.evaluate("document.activeElement.textContent") == "Next segment"
        page.get_by_text(f"Offsets {rows[1]['base_offset']} to {rows[1]['end_offset'] - 1}").wait_for()
        page.get_by_role("button", name="Segment before").press("Enter")
        page.get_by_text(f"Offsets 0 to {rows[0]['end_offset'] - 1}").wait_for()
        page.locator("summary", has_text="All segments").press("Enter")
        listed = page.get_by_role("table", name="Segments")
        listed.get_by_role("row").nth(len(rows)).wait_for()
        page.get_by_role("button", name="Segment before").press("Escape")
        page.get_by_role("region").wait_for(state="detached")
        assert page.evaluate("document.activeElement.textContent") == "Segments"
        page.get_by_role("button", name="Partition 2:").press("ArrowRight")
        assert f"Offsets 0 to {rows[0]['end_offset'] - 1} " in show_segment(page, 2).replace(",", "")


def test_bars_over_time_name_the_times_of_their_ends(site: Site) -> None:
    find_segments(site, 0)
    with site.visit("topics/orders") as page:
        page.get_by_label("Bars over").select_option("time")
        page.locator("svg.tiers rect.bucket").first.wait_for()
        ends = page.locator(".ends").first.locator("span").all_text_contents()
        others = [page.locator(".ends").nth(number).locator("span").all_text_contents() for number in (1, 2)]
        assert all(each[::2] == ends[::2] for each in others), "bars over time have one scale"
        assert all(text.startswith("20") and text.count(":") == 2 for text in (ends[0], ends[2])) and ends[0] < ends[2]
        widths = [float(each.get_attribute("width") or 0) for each in page.locator("svg.tiers rect").all()]
        assert all(0 <= each <= 1000 for each in widths)
        page.locator("svg.tiers").first.click(position={"x": 3, "y": 15})
        assert show_segment(page, 0).startswith("Offsets "), "which one goes by what other tests wrote since"


def test_markup_in_names_and_records_of_a_topic_is_text(site: Site) -> None:
    site.tiered("topic", "consume", "orders", "-g", MARKUP, "-n", "30")
    marked = next(
        (partition, each["base_offset"])
        for partition in range(3)
        for each in find_segments(site, partition)
        if MARKUP in read_text(site, partition, each["base_offset"])
    )
    with site.page("topics/orders?pick={}:{}".format(*marked)) as page:
        show_segment(page, marked[0])
        page.get_by_role("table", name="First records").get_by_text("<script>").first.wait_for()
        page.locator("svg.tiers rect.position title").first.wait_for(state="attached")
        titles = page.locator("svg.tiers rect.position title").all_text_contents()
        assert any(text.startswith(MARKUP) for text in titles)
    with site.page("topics/orders?tab=groups") as page:
        page.get_by_role("link", name=MARKUP).click()
        page.get_by_role("heading", name=MARKUP).wait_for()
        page.get_by_text("Lag").first.wait_for()
    with site.page("topics/orders?pick=0:0&axis=%3Cscript%3E") as page:
        show_segment(page, 0)


def read_text(site: Site, partition: int, offset: int) -> str:
    """Returns the first records from an offset on, as the page shows them."""
    url = f"{site.urls[0]}/topics/orders/partitions/{partition}/records?offset={offset}&max_bytes=16384"
    with urlopen(url, timeout=SECONDS) as reply:
        records = json.load(reply)["records"][:5]
    return "".join(f"{each['key']}{each['value']}".replace('\\"', '"') for each in records)
