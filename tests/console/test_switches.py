"""Tests of the console in a browser with settings that take something from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.console.site import Site
from tests.e2e.serving import serve_cluster

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_console_without_messages_shows_no_record_and_says_so(browser: Browser, tmp_path: Path) -> None:
    with serve_cluster(tmp_path, 1, "-c", "tiered.console.messages=false") as up:
        site = Site(up, browser)
        site.tiered("topic", "create", "t")
        site.produce("t", [{"key": "hidden-key", "value": "hidden-value"}])
        with site.page("topics/t?pick=0:0") as page:
            page.get_by_text("it is open, and closes").wait_for()
            page.get_by_text("The console shows no records here").wait_for()
            assert page.get_by_role("link", name="Messages").count() == 0
            assert "hidden-" not in page.content()
        with site.page("topics/t/messages?from=start") as page:
            page.get_by_text("The console shows no records here").wait_for()
            assert page.get_by_role("button").count() == 0 and "hidden-" not in page.content()
