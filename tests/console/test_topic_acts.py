"""Tests of the acts on topics in a browser: create, change, grow, move, elect, compact, delete records, delete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.console.site import MARKUP, Site, make_record
from tests.console.test_group_acts import open_act

if TYPE_CHECKING:
    from playwright.sync_api import Locator

PREVIEW = "What will change?"


def describe(site: Site, topic: str) -> dict[int, dict[str, Any]]:
    """Returns the partitions of a topic, by their numbers."""
    [found] = [
        json.loads(line) for line in site.tiered("topic", "describe", topic, "-p", "--format", "json").splitlines()
    ]
    return {row["partition"]: row for row in found["partitions"]}


def confirm(dialog: Locator, name: str, label: str) -> None:
    """Types the name that an act asks for, and does the act."""
    dialog.get_by_role("button", name=label, exact=True, disabled=True).wait_for()
    dialog.get_by_label("name to confirm").fill(name)
    dialog.get_by_role("button", name=label, exact=True).click()


def test_topic_is_created_changed_grown_and_deleted(site: Site) -> None:
    with site.page("topics") as page:
        dialog = open_act(page, "Create a topic")
        dialog.get_by_label("Name", exact=True).fill("made")
        dialog.get_by_label("Partitions (empty").fill("2")
        dialog.get_by_label("Settings").fill("retention.ms=1000000")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text("2 partitions with").wait_for()
        told = "tiered topic create made -p 2 -c retention.ms=1000000 --brokers"
        assert told in (dialog.locator("pre").text_content() or "")
        dialog.get_by_role("button", name="Create a topic").click()
        dialog.get_by_text("Topic made is there.").wait_for()
        assert (dialog.get_by_role("link", name="made").get_attribute("href") or "").endswith("/console/topics/made")
    with site.page("topics/made?tab=settings&setting=retention.ms") as page:
        row = page.get_by_role("row").filter(has=page.get_by_text("retention.ms", exact=True))
        row.get_by_role("button", name="Change").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_label("Return to the default").check()
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text("Now it is 1000000 (dynamic topic config).").wait_for()
        dialog.get_by_text("Then it is 604800000 (default config).").wait_for()
        dialog.get_by_role("button", name="Change").click()
        dialog.get_by_text("retention.ms is changed.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        row.get_by_text("604800000").wait_for()
    with site.page("topics/made") as page:
        dialog = open_act(page, "Add partitions")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text("1 partition more.").wait_for()
        dialog.get_by_role("button", name="Add partitions").click()
        dialog.get_by_text("made has 3 partitions.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        page.get_by_text("Partition 2").wait_for()
        dialog = open_act(page, "Delete topic")
        dialog.get_by_text("0 records in 3 partitions will be gone for ever.").wait_for()
        confirm(dialog, "made", "Delete topic")
        dialog.get_by_text("Topic made is deleted.").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "Close", "the keys go on at the end of the act"
        assert page.get_by_role("alert").count() == 0
        dialog.get_by_role("button", name="Close").click()
        page.wait_for_url("**/console/topics")
    assert "made" not in site.tiered("topic", "list")


def test_records_are_deleted_as_many_as_the_page_said(site: Site) -> None:
    site.tiered("topic", "create", "cut", "-p", "1")
    site.produce("cut", [make_record(number) for number in range(30)])
    site.tiered("topic", "consume", "cut", "-g", "cutter", "-n", "5")
    with site.visit("topics/cut") as page:
        dialog = open_act(page, "Delete records")
        dialog.get_by_label("Delete the records before").select_option("offset")
        dialog.get_by_label("New first offset").fill("12")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text("12 records will be gone for ever, on the disks and in the bucket, of 30.").wait_for()
        dialog.get_by_text("Group cutter has not read 7 of them, and skips them.").wait_for()
        assert page.evaluate("document.activeElement.ariaLabel") == "name to confirm"
        assert "tiered topic trim cut -p 0 -o 12 " in (dialog.locator("pre").text_content() or "")
        assert describe(site, "cut")[0]["log_start_offset"] == 0
        confirm(dialog, "cut", "Delete records")
        dialog.get_by_text("12 records deleted.").wait_for()
    assert describe(site, "cut")[0]["log_start_offset"] == 12


def test_partition_is_moved_and_its_preferred_leader_elected(site: Site) -> None:
    site.tiered("topic", "create", "movable", "-p", "1", "-r", "1")
    leader = describe(site, "movable")[0]["leader"]
    other = leader % 3 + 1
    with site.visit("topics/movable") as page:
        dialog = open_act(page, "Move")
        dialog.get_by_label("Broker ids").fill(f"{other},{leader}")
        dialog.get_by_role("button", name=PREVIEW).click()
        dialog.get_by_text("1 replica will be copied").wait_for()
        dialog.get_by_text("The partition has more replicas: 2 in place of 1.").wait_for()
        dialog.get_by_text(f"The preferred leader is broker {other}.").wait_for()
        fewer = {"leader": 2, "replicas": [2, 3, 1], "target": [3, 1], "adding": [], "removing": [2]}
        script = "move => import('/console/static/topic_acts.js').then(acts => acts.replicationFacts(move))"
        assert [each.partition(":")[0] for each in page.evaluate(script, fewer)] == [
            "The partition has fewer replicas",
            "The leader changes",
        ]
        assert f"tiered cluster reassign movable/0={other},{leader} " in (dialog.locator("pre").text_content() or "")
        confirm(dialog, "movable", "Move")
        dialog.get_by_text("The move has begun.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        page.get_by_text(f"leader {other}, in sync").or_(
            page.get_by_text(f"in sync {other}, {leader}")
        ).first.wait_for()
        dialog = open_act(page, "Elect leaders")
        dialog.get_by_role("button", name=PREVIEW).click()
        changes = dialog.get_by_text("1 partition of 1 will have another leader.")
        changes.or_(dialog.get_by_text("No leader would change.")).wait_for()
        if changes.count():
            dialog.get_by_role("button", name="Elect leaders").click()
            dialog.get_by_text("1 leader elected.").wait_for()
        dialog.get_by_role("button", name="Close").or_(dialog.get_by_role("button", name="Cancel")).click()
        page.get_by_text(f"leader {other},").wait_for()


def test_only_acts_that_can_be_done_are_offered(site: Site) -> None:
    site.tiered("topic", "create", "keyed", "-p", "1", "-c", "cleanup.policy=compact")
    with site.page("topics/keyed") as page:
        dialog = open_act(page, "Compact now")
        dialog.get_by_text("are not cleaned yet.").wait_for()
        dialog.get_by_role("button", name="Compact now").click()
        dialog.get_by_text("The cleaners begin").wait_for()
    with site.visit("topics/empty") as page:
        page.get_by_role("button", name="Delete topic").wait_for()
        assert page.get_by_role("button", name="Compact now").count() == 0, "nothing cleans it"
    with site.visit("topics/__consumer_offsets") as page:
        page.get_by_text("The topic is internal").wait_for()
        assert page.get_by_role("button", name="Delete topic").count() == 0
        page.get_by_role("link", name="Messages").click()
        page.get_by_text("Write a record").click()
        page.get_by_text("The topic is internal: clients cannot write to it.").wait_for()


def test_refusal_of_an_act_is_shown_as_text(site: Site) -> None:
    """The broker's sentence names what the caller typed."""
    page = site.open_window()
    page.goto(f"{site.urls[0]}/console/topics")
    dialog = open_act(page, "Create a topic")
    dialog.get_by_label("Name", exact=True).fill(MARKUP)
    dialog.get_by_role("button", name=PREVIEW).click()
    alert = dialog.get_by_role("alert")
    alert.wait_for()
    assert "<script>" in (alert.text_content() or "")
    assert page.evaluate("document.activeElement.textContent") == PREVIEW, "the keys go on where they were"
    assert page.evaluate("globalThis.owned") is None
    page.context.close()
