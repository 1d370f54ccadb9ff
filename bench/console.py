"""The console in a browser beside a broker: first paint, a list of 10,000 topics, an open page, and searches.

The browser shares the cores with the broker and with whatever else runs. So each time is a median of several loads, and
the load of the machine is printed beside the figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import IO, TYPE_CHECKING, Any

import pytest

from bench.broker import BrokerProcess
from bench.figures import Figure
from tests.console.site import open_browser
from tests.hostile.target import P99_MS, WORST_MS
from tiered.records.batch import encode_batch
from tiered_api.http.console.pages import load_files
from tiered_api.http.exchange import media_types

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOPICS = 10_000
TOPICS_AT_ONCE = 500
RECORDS, RECORD_BYTES = 1_000_000, 1_024
BATCH_RECORDS = 16
"""Records of a batch, as a Kafka producer with its default `batch.size` sends records of 1 KiB."""
POST_RECORDS = 2_000
LOADS = 9
"""Loads of a page, of which the median counts."""
OPEN_SECONDS = 30
SEARCHES = 5
SEARCHERS, SEARCH_SECONDS = 10, 20
SETTINGS = (f"tiered.partitions.max.per.broker={2 * TOPICS}",)
NEEDLES = {"start": "needle-in-the-last", "end": "needle-in-the-first"}
"""Text that one record has, by where a search for it begins: at the other end of the partition."""
PAGES = {
    "": "Since the brokers started",
    "topics": "topic-00000",
    "topics/big": "Partition 0",
    "topics/big/messages": "200 records",
    "groups": "no group",
    "metadata": "broker 1",
}
"""Pages, with a text that shows that their data are there."""
SHOWN = """words => new Promise(done => {
  const look = () => {
    if (document.querySelector("main")?.textContent.includes(words)) done(performance.now());
    else setTimeout(look, 2);
  };
  look();
})"""
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
ASKED = "() => performance.getEntriesByType('resource').length"
STOPPED = """() => new Promise(done => {
  const button = [...document.querySelectorAll("button")].find(each => each.textContent === "Stop");
  const began = performance.now();
  button.click();
  const look = () => button.isConnected ? setTimeout(look, 1) : done(performance.now() - began);
  look();
})"""


def main() -> list[Figure]:
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(open_browser())
        except pytest.skip.Exception as reason:
            print(f"bench console: {reason}", file=sys.stderr)
            return []
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiered-console-")))
        broker = stack.enter_context(BrokerProcess(directory / "data", *SETTINGS))
        say_load("before")
        fill(broker)
        say_load("filled")
        figures = [*measure_paint(browser, broker), measure_assets(), *measure_topics(browser, broker)]
        say_load("painted")
        figures += measure_open_pages(browser, broker)
        say_load("open")
        for begin in NEEDLES:
            figures += [*measure_search(browser, broker, begin), *measure_others(browser, broker, begin)]
            say_load(f"searched from the {begin}")
        return figures


def say_load(when: str) -> None:
    print(f"bench console: {when}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)


def fill(broker: BrokerProcess) -> None:
    """Creates the topics, and writes the records: the first and the last one have texts that searches look for."""
    names = [f"topic-{number:05d}" for number in range(TOPICS)]
    for first in range(0, TOPICS, TOPICS_AT_ONCE):
        run_tiered(broker, "topic", "create", *names[first : first + TOPICS_AT_ONCE])
    broker.create_topic("big", 1, retention_ms=-1)
    special = {0: make_body(first=NEEDLES["end"]), RECORDS - POST_RECORDS: make_body(last=NEEDLES["start"])}
    plain = make_body()
    for offset in range(0, RECORDS, POST_RECORDS):
        body = special.get(offset, plain)
        status, answer = broker.request("POST", "/topics/big/partitions/0/records", body, media_types.BINARY)
        if status != 200:
            raise RuntimeError(f"{status} {answer[:300]!r}")


def run_tiered(broker: BrokerProcess, *words: str) -> None:
    command = [sys.executable, "-m", "tiered_api.cli.main", *words, "--brokers", kafka_address(broker)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)


def kafka_address(broker: BrokerProcess) -> str:
    """Returns the address for Kafka's protocol, once the broker has registered it."""
    while (address := broker.json("GET", "/tiered/v1/cluster")["brokers"][0]["address"]) is None:
        time.sleep(0.1)
    return str(address)


def make_body(first: str = "", last: str = "") -> bytes:
    """Returns batches of records whose values are JSON of some `RECORD_BYTES`. The first and last have these texts."""
    now = int(time.time() * 1000)
    values = [{"id": number, "note": os.urandom(RECORD_BYTES // 2 - 16).hex()} for number in range(POST_RECORDS)]
    values[0]["first"], values[-1]["last"] = first, last
    records = [(now, b"key-%d" % number, json.dumps(value).encode(), ()) for number, value in enumerate(values)]
    return b"".join(
        encode_batch(records[index : index + BATCH_RECORDS]) for index in range(0, POST_RECORDS, BATCH_RECORDS)
    )


@contextmanager
def open_page(browser: Browser, broker: BrokerProcess, path: str) -> Iterator[Page]:
    """Yields a page in a browser that has nothing in its cache."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"http://127.0.0.1:{broker.port}/console/{path}", wait_until="commit")
    yield page
    context.close()


def measure_paint(browser: Browser, broker: BrokerProcess) -> Iterator[Figure]:
    """Measures the first paint of each page from the start of its navigation, and when its data are there."""
    for path, words in PAGES.items():
        painted, shown = [], []
        for _ in range(LOADS):
            with open_page(browser, broker, path) as page:
                shown.append(page.evaluate(SHOWN, words))
                page.wait_for_function(PAINTED)
                painted.append(page.evaluate(PAINTED))
                page.wait_for_load_state("networkidle")  # the broker is idle at the next load
        note = f"{min(painted):.0f}-{max(painted):.0f}; data shown after {median(shown):.0f} ms"
        yield Figure(f"first paint of /console/{path}", median(painted), "ms", 300, at_most=True, note=note)


def measure_assets() -> Figure:
    size = sum(len(each.body) for each in load_files().values())
    return Figure("all files of the console", size / 1000, "kB", 300, at_most=True)


def measure_topics(browser: Browser, broker: BrokerProcess) -> Iterator[Figure]:
    """Measures the list of all topics: until it is there, until a search in it is done, and until its end is shown."""
    whole, searched, ended = [], [], []
    for _ in range(LOADS):
        with open_page(browser, broker, "topics") as page:
            whole.append(page.evaluate(SHOWN, "topic-00000"))
            began = page.evaluate("performance.now()")
            page.evaluate("scrollTo(0, document.body.scrollHeight)")
            ended.append(page.evaluate(SHOWN, f"topic-{TOPICS - 1:05d}") - began)
            box = page.get_by_role("searchbox")
            began = page.evaluate("performance.now()")
            box.fill(f"{TOPICS - 2:05d}")
            page.wait_for_function("document.querySelectorAll('tbody a').length === 1")
            searched.append(page.evaluate("performance.now()") - began)
    note = f"{TOPICS:,} topics; {min(whole):.0f}-{max(whole):.0f}"
    yield Figure("list of topics is there", median(whole), "ms", 1000, at_most=True, note=note)
    yield Figure("its end is shown after a scroll", median(ended), "ms", 1000, at_most=True)
    yield Figure("a search in it is done", median(searched), "ms", 1000, at_most=True)


def measure_open_pages(browser: Browser, broker: BrokerProcess) -> Iterator[Figure]:
    """Measures the CPU that an open page costs the broker beside an idle one, and its requests."""
    idle = cpu_share(broker, OPEN_SECONDS)
    for path, words in PAGES.items():
        with open_page(browser, broker, path) as page:
            page.evaluate(SHOWN, words)
            page.wait_for_load_state("networkidle")
            before = page.evaluate(ASKED)
            share = cpu_share(broker, OPEN_SECONDS, page) - idle
            asked = page.evaluate(ASKED) - before
        note = f"{asked} requests in {OPEN_SECONDS} s; an idle broker takes {idle:.2f} %"
        yield Figure(f"an open page /console/{path}", share, "% of a core", 1, at_most=True, note=note)


def cpu_share(broker: BrokerProcess, seconds: float, page: Page | None = None) -> float:
    """Returns the percent of a core that the broker takes in so many seconds."""
    began, before = time.perf_counter(), broker.cpu_seconds()
    if page is None:
        time.sleep(seconds)
    else:
        page.wait_for_timeout(seconds * 1000)
    return 100 * (broker.cpu_seconds() - before) / (time.perf_counter() - began)


def measure_search(browser: Browser, broker: BrokerProcess, begin: str) -> Iterator[Figure]:
    """Measures a search for a text that only the record farthest from `begin` has, and how soon a search stops."""
    found, stopped, left = [], [], []
    path = f"topics/big/messages?from={begin}&filter="
    for _ in range(SEARCHES):
        with open_page(browser, broker, path + NEEDLES[begin]) as page:
            found.append(page.evaluate(SHOWN, f"1 record of {RECORDS:,} scanned;"))
        with open_page(browser, broker, path + "that-nobody-wrote") as page:
            page.evaluate(SHOWN, "scanned …")
            page.wait_for_timeout(200)
            stopped.append(page.evaluate(STOPPED))
            page.wait_for_timeout(100 - min(100, stopped[-1]))
            reads = broker.metric("tiered_http_requests_total")
            page.wait_for_timeout(500)
            left.append(broker.metric("tiered_http_requests_total") - reads)
    note = f"{RECORDS:,} records of 1 KiB, the farthest has the text; {min(found):.0f}-{max(found):.0f}"
    yield Figure(f"a search of a partition from its {begin}", median(found) / 1000, "s", 3, at_most=True, note=note)
    note = f"requests later than 100 ms after it: {max(left) - 1:.0f}"  # the one is that of the metrics
    yield Figure(f"until a search from the {begin} stops", max(stopped), "ms", 100, at_most=True, note=note)


def measure_others(browser: Browser, broker: BrokerProcess, begin: str) -> Iterator[Figure]:
    """Measures what another client of the broker waits while ten pages search from `begin`."""
    path = f"topics/big/messages?from={begin}&filter=that-nobody-wrote"
    with start_probe(broker) as read:
        time.sleep(SEARCH_SECONDS / 4)
        quiet = read()
        with ExitStack() as stack:
            pages = [stack.enter_context(open_page(browser, broker, path)) for _ in range(SEARCHERS)]
            for page in pages:
                page.evaluate(SHOWN, "scanned")
            read()
            queued, before, began = queued_seconds(broker), broker.cpu_seconds(), time.perf_counter()
            while time.perf_counter() - began < SEARCH_SECONDS:
                for page in pages:
                    if page.get_by_role("button", name="Stop").count() == 0:
                        page.get_by_role("button", name="Read", exact=True).click()
                pages[0].wait_for_timeout(100)
            took = time.perf_counter() - began
            waits, share = read(), (queued_seconds(broker) - queued) / took
            cpu = (broker.cpu_seconds() - before) / took
    note = f"{SEARCHERS} search from the {begin}; broker {cpu:.2f} of a core, waits {share:.2f} of the time for one"
    yield Figure(
        "p99 of another client", waits["p99"], "ms", P99_MS, at_most=True, note=f"{note}; quiet {quiet['p99']}"
    )
    yield Figure("its longest wait", waits["worst"], "ms", WORST_MS, at_most=True, note=f"of {waits['count']:,.0f}")


@contextmanager
def start_probe(broker: BrokerProcess) -> Iterator[Any]:
    """Yields a function that returns the latencies of a client since its last call."""
    command = [sys.executable, "-m", "tests.hostile.probe", kafka_address(broker)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdin is not None and probe.stdout is not None
        probe.stdout.readline()

        def read(to: IO[str] = probe.stdin, out: IO[str] = probe.stdout) -> dict[str, float]:
            print(file=to, flush=True)
            return dict(json.loads(out.readline()))

        yield read
        probe.stdin.close()


def queued_seconds(broker: BrokerProcess) -> float:
    """Returns the seconds in which the broker was runnable while others ran on all cores."""
    return int(Path(f"/proc/{broker.process.pid}/schedstat").read_text().split()[1]) / 1e9
