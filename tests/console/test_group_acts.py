"""Tests of the acts on groups in a browser: each says in numbers what will change before it changes anything."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.console.site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def open_act(page: Page, label: str) -> Locator:
    """Opens the dialogue of an act, and returns it."""
    page.get_by_role("button", name=label, exact=True).click()
    return page.get_by_role("dialog")


def offsets(site: Site, group: str) -> dict[int, int]:
    """Returns the committed offsets of a group, by partition."""
    [found] = [json.loads(line) for line in site.tiered("group", "describe", group, "--format", "json").splitlines()]
    return {row["partition"]: row["current_offset"] for row in found["partitions"]}


def test_offsets_are_reset_to_what_the_preview_told(site: Site) -> None:
    site.tiered("topic", "consume", "orders", "-g", "again", "-n", "900")
    read = sum(offsets(site, "again").values())
    with site.visit("groups/again") as page:
        dialog = open_act(page, "Reset offsets")
        dialog.get_by_role("button", name="What will change?").click()
        dialog.get_by_text(f"{read:,} records will be read again.").wait_for()
        dialog.get_by_text("No record will be skipped.").wait_for()
        assert "tiered group seek again --to start --brokers" in (dialog.locator("pre").text_content() or "")
        assert sum(offsets(site, "again").values()) == read, "a preview changes nothing"
        dialog.get_by_role("button", name="Reset offsets").click()
        dialog.get_by_text("3 offsets committed.").wait_for()
        assert offsets(site, "again") == dict.fromkeys(range(3), 0)
        dialog.get_by_role("button", name="Close").click()
        page.get_by_text("behind by").first.wait_for()


def test_one_partition_is_moved_by_keyboard_alone(site: Site) -> None:
    site.tiered("topic", "consume", "orders", "-g", "keys", "-n", "900")
    before = offsets(site, "keys")
    with site.visit("groups/keys") as page:
        page.get_by_role("button", name="Reset offsets").press("Enter")
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Go to").select_option("offset")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.type("1")
        page.keyboard.press("Tab")
        page.keyboard.type("7")
        page.keyboard.press("Enter")
        dialog.get_by_text("read again.").wait_for()
        page.keyboard.press("Enter")
        dialog.get_by_text("1 offset committed.").wait_for()
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
    assert offsets(site, "keys") == before | {1: 7}


def test_group_is_deleted_only_once_its_name_is_typed(site: Site) -> None:
    site.tiered("topic", "consume", "orders", "-g", "leaving", "-n", "900")
    with site.visit("groups/leaving") as page:
        dialog = open_act(page, "Delete group")
        dialog.get_by_text("committed offsets will be gone").wait_for()
        for typed, disabled in (("", True), ("leavin", True), ("leaving", False)):
            dialog.get_by_label("name to confirm").fill(typed)
            dialog.get_by_role("button", name="Delete group", disabled=disabled).wait_for()
        dialog.get_by_role("button", name="Delete group").click()
        dialog.get_by_text("Group leaving is deleted.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        page.wait_for_url("**/console/groups")
        page.get_by_role("link", name="billing").wait_for()
        assert page.get_by_role("link", name="leaving").count() == 0


def test_groups_are_listed_with_since_when_they_are_behind(site: Site) -> None:
    with site.visit("groups") as page:
        row = page.get_by_role("row", name="billing")
        row.filter(has_text="orders").filter(has_text="2,100").wait_for()
        row.get_by_text(re.compile("^20")).wait_for()  # of the oldest unread record, which may not be read at once
