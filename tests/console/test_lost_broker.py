"""Tests of a page whose broker goes away: by the clock of the page it goes on with another one, at the same address."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console.site import Site, open_window
from tests.e2e.serving import ServedCluster, serve_cluster

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ADDRESS = "topics/orders?tab=settings"


@pytest.fixture(scope="module")
def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    """Two brokers. The second one is killed by the last test."""
    with serve_cluster(tmp_path_factory.mktemp("lost") / "data", 2) as served:
        Site(served, browser).tiered("topic", "create", "orders", "-r", "2")
        yield served


def open_page(browser: Browser, cluster: ServedCluster, path: str = ADDRESS) -> Page:
    """Returns a page of broker 2 that knows the other broker. Its clock stands still but for what a test lets pass."""
    page = open_window(browser)
    page.clock.install()
    with page.expect_response("**/tiered/v1/cluster"):
        page.goto(f"{cluster.urls[1]}/console/{path}")
    page.get_by_text("broker 2", exact=True).wait_for()
    page.clock.pause_at(page.evaluate("Date.now()") + 60_000)
    return page


def lose_broker(page: Page) -> None:
    """Lets the clock run until the page says that its broker does not reply."""
    while not page.locator(".lost").is_visible():
        page.clock.run_for(2_000)


def test_page_stays_when_a_person_says_so(browser: Browser, cluster: ServedCluster) -> None:
    page = open_page(browser, cluster)
    page.route(f"{cluster.urls[1]}/**", lambda route: route.abort())
    lose_broker(page)
    page.clock.run_for(2_000)
    lose_broker(page)  # a late reply to a request before took it back
    page.get_by_role("button", name="Stay").dispatch_event("click")  # a click waits until the button stands still
    page.locator(".lost").wait_for(state="hidden")
    page.clock.run_for(60_000)
    assert page.url == f"{cluster.urls[1]}/console/{ADDRESS}"
    page.context.close()


def test_page_stays_when_its_broker_is_back(browser: Browser, cluster: ServedCluster) -> None:
    page = open_page(browser, cluster)
    page.route(f"{cluster.urls[1]}/**", lambda route: route.abort())
    lose_broker(page)
    page.clock.run_for(4_000)
    page.unroute_all()
    with page.expect_response(f"{cluster.urls[1]}/**"):
        page.clock.run_for(2_000)
    page.locator(".lost").wait_for(state="hidden")
    assert page.url == f"{cluster.urls[1]}/console/{ADDRESS}"
    page.context.close()


def test_page_waits_while_words_would_be_lost(browser: Browser, cluster: ServedCluster) -> None:
    path = "topics/orders/messages"
    page = open_page(browser, cluster, path)
    page.get_by_text("Write a record").click()
    page.locator("textarea").fill("not written yet")
    page.route(f"{cluster.urls[1]}/**", lambda route: route.abort())
    lose_broker(page)
    page.clock.run_for(60_000)
    assert page.url == f"{cluster.urls[1]}/console/{path}"
    page.get_by_text("in 10 s").wait_for()
    page.locator("textarea").fill("")
    page.clock.run_for(5_000)
    page.clock.resume()  # a page that goes on ends a run of its clock with an error
    page.wait_for_url(f"{cluster.urls[0]}/console/{path}")
    page.context.close()


def test_page_of_a_killed_broker_goes_on_with_another(browser: Browser, cluster: ServedCluster) -> None:
    page = open_page(browser, cluster)
    cluster.brokers[1].stop(signal.SIGKILL)
    lose_broker(page)
    page.get_by_text("This page goes on with broker 1").wait_for()
    page.clock.run_for(5_000)
    page.clock.resume()  # a page that goes on ends a run of its clock with an error
    page.wait_for_url(f"{cluster.urls[0]}/console/{ADDRESS}")
    page.get_by_text("broker 1", exact=True).wait_for()
    page.get_by_text("min.insync.replicas").first.wait_for()
    page.context.close()
