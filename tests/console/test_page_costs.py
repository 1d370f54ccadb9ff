"""Tests of what an open page costs a broker, by the clock of the page."""

from __future__ import annotations

import pytest

from tests.console.site import Site
from tests.console.test_pages import PAGES

ROUNDS = 10
ASKED_ONCE = ("topics/orders/messages", "topics/empty/messages", "metadata")
"""Pages that ask for what they show when they are opened, and then on demand."""
FRAME = ("/tiered/v1/console", "/tiered/v1/cluster")
"""Requests of the frame around all pages: is the broker there, and which are the others?"""


@pytest.mark.parametrize("path", PAGES)
def test_open_page_makes_one_request_in_two_seconds_at_most(site: Site, path: str) -> None:
    with site.page(path) as page:
        asked: list[str] = []
        ended: list[str] = []
        page.clock.install()
        page.on("request", lambda each: asked.append(each.url))
        for event in ("requestfinished", "requestfailed"):
            page.on(event, lambda each: ended.append(each.url))
        page.reload()
        page.get_by_text(PAGES[path]).first.wait_for()
        page.clock.pause_at(page.evaluate("Date.now()") + 60_000)  # else it also goes on by itself

        def pass_seconds() -> None:
            """Moves the clock by two seconds, and waits for the replies to all that the page asks for then."""
            page.clock.run_for(2_000)
            page.evaluate("0")  # its reply follows the requests that the page made
            while len(ended) < len(asked):
                page.wait_for_timeout(20)

        # a request of the opening follows the reply to another one, or fails as the clock jumps, and is made again
        quiet = 0
        for _ in range(5 * ROUNDS):
            before = len(asked)
            pass_seconds()
            quiet = quiet + 1 if len(asked) - before <= 1 else 0
            if quiet == 3:
                break
        del asked[:], ended[:]
        for _ in range(ROUNDS):
            pass_seconds()
        assert len(asked) <= ROUNDS, asked
        shown = [each for each in asked if not path or not each.endswith(FRAME)]
        assert bool(shown) == (path not in ASKED_ONCE), "the page is not kept up to date"
        page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true })")
        del asked[:]
        page.clock.run_for(60_000)
        assert not asked, "a hidden page asks"
