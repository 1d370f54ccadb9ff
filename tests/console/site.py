"""A cluster of three brokers with records on disk and in the bucket, and a browser that looks at its console."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

from tests.e2e.serving import SECONDS, ServedCluster, run_tiered, serve_cluster
from tests.e2e.test_up import UpProcess
from tests.sources import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MARKUP = "<script>globalThis.owned = true</script><img src=x onerror='globalThis.owned = true'>"
"""A text that a page must show and never run."""
RECORDS = 3_000
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Browsers in the order of preference: a new window of the first one, which has no frame to draw, takes a fifth of the
CPU time."""
WAIT_MS = 180_000
"""Limit of each wait of a page, against a hang."""
Start = Callable[..., AbstractContextManager[ServedCluster | UpProcess]]
"""Starter of a cluster: `serve_cluster`, or `start_up` where brokers are killed and return."""


def find_browser() -> str:
    """Returns the path of a browser. Skips the test by name without one."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not here: pip install playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no browser is here: apt-get install chromium-headless-shell")
    return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Yields a browser without a window."""
    path = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_window(browser: Browser, **options: Any) -> Page:
    """Returns an empty page in a new window, which waits for minutes."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(WAIT_MS)
    return page


class Site:
    """The cluster, and pages of its console."""

    def __init__(self, cluster: ServedCluster | UpProcess, browser: Browser, warehouse: Path | None = None) -> None:
        self.cluster = cluster
        self.warehouse = warehouse
        self.browser = browser
        self._window: Page | None = None
        self.store, self.urls = cluster.store, cluster.urls

    def tiered(self, *arguments: str) -> str:
        """Runs a command on the cluster; returns its output."""
        done = run_tiered(*arguments, "--brokers", ",".join(self.cluster.kafka))
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def produce(self, topic: str, records: list[dict[str, Any]]) -> None:
        """Writes records over REST v2."""
        kind = {"Content-Type": "application/vnd.kafka.json.v2+json"}
        asked = Request(f"{self.urls[0]}/topics/{topic}", json.dumps({"records": records}).encode(), kind)
        with urlopen(asked, timeout=SECONDS) as reply:
            assert not any(each["error"] for each in json.load(reply)["offsets"])

    def write_to_open_segment(self, partition: int) -> None:
        """Writes a record to a partition of `orders`, whose last segment may have closed since."""
        self.produce("orders", [{"partition": partition, **make_record(RECORDS)}])

    def set_config(self, topic: str, name: str, value: str) -> None:
        """Changes a setting of a topic over REST v3."""
        with urlopen(f"{self.urls[0]}/v3/clusters", timeout=SECONDS) as reply:
            cluster = json.load(reply)["data"][0]["cluster_id"]
        url = f"{self.urls[0]}/v3/clusters/{cluster}/topics/{topic}/configs/{name}"
        body = json.dumps({"value": value}).encode()
        asked = Request(url, body, {"Content-Type": "application/json"}, method="PUT")
        with urlopen(asked, timeout=SECONDS) as reply:
            assert reply.status == 204

    @contextmanager
    def page(self, path: str, *, broker: int = 0, **options: Any) -> Iterator[Page]:
        """Yields a page of the console in a new window."""
        page = self.open_window(**options)
        with self._watch(page, path, broker):
            yield page
        page.context.close()

    @contextmanager
    def visit(self, path: str) -> Iterator[Page]:
        """Yields a page in light colours, in the window of the last visit: a new window takes twice the time. A
        test that fakes replies or a clock opens a window of its own: these stay with a window."""
        page, self._window = self._window or self.open_window(), None
        page.mouse.move(0, 0)
        page.emulate_media(color_scheme="light")
        with self._watch(page, path):
            yield page
        self._window = page  # a visit that fails leaves none

    def open_window(self, **options: Any) -> Page:
        """Returns an empty page in a new window, which waits for minutes."""
        return open_window(self.browser, viewport={"width": 1280, "height": 860}, **options)

    @contextmanager
    def _watch(self, page: Page, path: str, broker: int = 0) -> Iterator[None]:
        """Goes to a page. Fails if it reports an error or asks another host for anything."""
        own = self.urls[broker]
        faults: list[str] = []
        watchers: dict[Any, Callable[[Any], None]] = {
            "pageerror": lambda fault: faults.append(f"{path}: {fault}"),
            "console": lambda said: faults.append(f"{path}: {said.text}") if said.type == "error" else None,
            "request": lambda asked: None if asked.url.startswith(own) else faults.append(asked.url),
        }
        for event, watcher in watchers.items():
            page.on(event, watcher)
        page.goto(f"{own}/console/{path}")
        yield
        assert page.evaluate("globalThis.owned") is None, "text of a record ran as a script"
        assert not faults, faults
        for event, watcher in watchers.items():
            page.remove_listener(event, watcher)


@contextmanager
def open_site(browser: Browser, directory: Path, start: Start = serve_cluster) -> Iterator[Site]:
    """Yields a cluster with a topic `orders` in both tiers, and a group that has read a part of it."""
    often = ("remote.log.manager.task.interval.ms=500", "log.retention.check.interval.ms=500")
    warehouse = directory / "tables"
    warehouse.mkdir()
    prices = ROOT / "infra" / "prices" / "s3-standard.toml"
    console = (f"tiered.console.warehouse={warehouse}", f"tiered.console.prices={prices}")
    settings = ("tiered.internal.configs.enable=true", *often, *console)
    given = [word for each in settings for word in ("-c", each)]
    with start(directory / "data", 3, *given) as cluster:
        site = Site(cluster, browser, warehouse)
        small = ("-c", "internal.segment.bytes=16384", "-c", "local.retention.bytes=30000")
        site.tiered("topic", "create", "orders", "-p", "3", "-r", "3", *small)
        site.tiered("topic", "create", "empty")
        for first in range(0, RECORDS, 1_000):
            site.produce("orders", [make_record(number) for number in range(first, first + 1_000)])
        site.tiered("topic", "consume", "orders", "-g", "billing", "-n", "900")
        for partition in range(3):
            find_segments(site, partition)
        yield site


def find_segments(site: Site, partition: int) -> list[dict[str, Any]]:
    """Returns the segments of a partition of `orders`, once some are in the bucket alone."""
    url = f"{site.urls[0]}/tiered/v1/topics/orders/partitions/{partition}/segments"
    end = time.monotonic() + SECONDS
    while True:
        with urlopen(url, timeout=SECONDS) as reply:
            rows: list[dict[str, Any]] = json.load(reply)["segments"]
        if rows[0]["object"] and not rows[0]["on_brokers"]:
            return rows
        assert time.monotonic() < end, rows
        time.sleep(0.05)


def make_record(number: int) -> dict[str, Any]:
    """Returns a record of REST v2. Some have markup as key or in their value."""
    note = MARKUP if number % 100 == 0 else "x" * 40
    return {"key": MARKUP if number % 500 == 7 else f"key-{number}", "value": {"id": number, "note": note}}
