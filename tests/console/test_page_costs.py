"""Tests of what an open page costs a broker, by the clock of the page."""

from __future__ import annotations

import pytest

from tests.console.site import Site
from tests.console.test_pages import PAGES

ROUNDS = 10
ASKED_ONCE = ("topics/orders/messages", "topics/empty/messages", "metadata")
"""Pages that ask for what they show when they are opened, and then on demand."""


@pytest.mark.parametrize("path", PAGES)
def test_open_page_makes_one_request_in_two_seconds_at_most(site: Site, path: str) -> None:
    with site.page(path) as page:
        page.clock.install()
        page.reload()
        page.get_by_text(PAGES[path]).first.wait_for()
        page.clock.pause_at(page.evaluate("Date.now()") + 60_000)  # else it also goes on by itself
        page.wait_for_load_state("networkidle")
        asked: list[str] = []
        page.on("request", lambda each: asked.append(each.url))
        for _ in range(ROUNDS):
            page.clock.run_for(2_000)
            page.wait_for_load_state("networkidle")
        assert len(asked) <= ROUNDS, asked
        assert bool(asked) == (path not in ASKED_ONCE), "the page is not kept up to date"
        page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true })")
        del asked[:]
        page.clock.run_for(60_000)
        assert not asked, "a hidden page asks"
