"""`tiered up`: a cluster on one machine. Each broker is a `tiered serve` of its own with its own directory and ports;
they share a store, and that makes them one cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from tiered.config.settings import Settings, address
from tiered.errors import Code, Refused
from tiered.system.local_disk import LockFile
from tiered_api.cli.broker.directories import LOCK, claim, of_broker, refuse_that_of_a_broker
from tiered_api.cli.broker.sources import settings
from tiered_api.cli.broker.supervise import Fleet, Program
from tiered_api.kafka.client.client import Address

OWN_EACH = ("node.id", "data.dir", "http", "kafka", "listeners", "advertised.listeners", "advertised.http")
"""Settings that no two brokers of a machine can share."""
READY = "tiered is ready: "
OWN = "up"


@dataclass(frozen=True, slots=True)
class Place:
    """One broker: its number, its directory, and HOST:PORT of its two faces (port 0: any free one)."""

    node_id: int
    directory: str
    kafka: Address
    http: Address

    @property
    def name(self) -> str:
        return f"broker-{self.node_id}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to run."""

    directory: str
    store: str
    places: tuple[Place, ...]
    common: tuple[str, ...]
    """Options that each broker gets as they were given."""


def up(args: Namespace) -> int:
    """Runs the brokers until Ctrl-C or SIGTERM."""
    made = plan(args)
    claim(made.directory)
    with LockFile(os.path.join(made.directory, LOCK)):
        return asyncio.run(_run(made))


def plan(args: Namespace) -> Plan:
    """What the command line asks for. Refused when it cannot be: nothing has been started then."""
    for pair in args.pairs:
        name = pair.partition("=")[0].strip()
        if name in OWN_EACH:
            raise Refused(Code.INVALID_CONFIG, f"-c {pair}: each broker has its own; see --data-dir, --kafka, --http")
    directory = os.path.abspath(args.data_dir)
    refuse_that_of_a_broker(directory)
    kafka, http = _face(args.kafka, "kafka"), _face(args.http, "http")
    places = tuple(
        Place(
            number + 1,
            of_broker(directory, number + 1),
            _counted(kafka, number, "kafka"),
            _counted(http, number, "http"),
        )
        for number in range(args.brokers)
    )
    store = _store(args, places[0], directory)
    common = [*(("--config", args.config) if args.config is not None else ())]
    for pair in args.pairs:
        common += ["-c", pair]
    return Plan(directory, store, places, tuple(common))


def _face(text: str, option: str) -> Address:
    if not text:
        raise Refused(Code.INVALID_CONFIG, f"--{option}: it must be HOST:PORT")
    return Address(*address(text, option))


def _counted(first: Address, number: int, option: str) -> Address:
    """The address of a broker: ports count up from that of the first."""
    port = first.port + number if first.port else 0
    if port > 65535:
        raise Refused(Code.INVALID_CONFIG, f"--{option} {first}: there is no port {port} for broker {number + 1}")
    return first._replace(port=port)


def _store(args: Namespace, place: Place, directory: str) -> str:
    """The bucket of all. The settings are proved for the first broker: what it would refuse is refused here."""
    options = {"data.dir": place.directory, "node.id": str(place.node_id), "http": str(place.http)}
    options |= {"kafka": str(place.kafka)} | ({"store": args.store} if args.store is not None else {})
    chosen: Settings = settings(args.config, os.environ, args.pairs, options)[0]
    for name, given in (("listeners", chosen.listeners), ("advertised.listeners", chosen.advertised_listeners)):
        if given:
            raise Refused(Code.INVALID_CONFIG, f"{name}={','.join(given)}: each broker has its own; see --kafka")
    if chosen.advertised_http:
        raise Refused(Code.INVALID_CONFIG, f"advertised.http={chosen.advertised_http}: each broker has its own")
    if chosen.store.startswith("memory:"):
        raise Refused(Code.INVALID_CONFIG, f"store={chosen.store}: brokers are processes and cannot share memory")
    return chosen.store or f"file://{directory}/bucket"


def command(made: Plan, place: Place) -> Callable[[str], Sequence[str]]:
    """How a broker is started; the next time where it was the last time, also when any port would do."""

    def words(ready_line: str) -> list[str]:
        http, kafka = (str(place.http), str(place.kafka)) if not ready_line else faces(ready_line)
        return [
            sys.executable, "-m", "tiered_api.cli.broker.child", str(os.getpid()), "serve", *made.common,
            "--node-id", str(place.node_id), "--data-dir", place.directory, "--store", made.store,
            "--http", http, "--kafka", kafka,
        ]  # fmt: skip

    return words


def faces(ready_line: str) -> tuple[str, str]:
    """HOST:PORT of HTTP and of the Kafka protocol, as a broker says it when it is ready."""
    found = re.match(rf"{READY}http://(\S+) .*? kafka=([^\s,]+)", ready_line)
    assert found is not None, ready_line
    return found[1], found[2]


def ready_line(made: Plan, said: Sequence[str]) -> str:
    """What a person needs to go on, in one line."""
    each = [faces(line) for line in said]
    kafka = ",".join(kafka for _, kafka in each)
    http = ",".join(f"http://{http}" for http, _ in each)
    count = f"{len(each)} broker{'s' if len(each) > 1 else ''}"
    return f"{READY}{count} kafka={kafka} http={http} store={made.store}"


async def _run(made: Plan) -> int:
    width = max(len(place.name) for place in made.places)

    def say(name: str, line: str) -> None:
        _print(f"{name:<{width}} | {line}", sys.stderr)

    programs = [Program(place.name, command(made, place), READY) for place in made.places]
    fleet = Fleet(programs, say, OWN)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN or number is not signal.SIGHUP:
            loop.add_signal_handler(number, fleet.tell)
    return int(await fleet.run(lambda said: _print(ready_line(made, said), sys.stdout)))


def _print(line: str, where: TextIO) -> None:
    """Whoever reads the output may leave: the brokers stay."""
    with contextlib.suppress(OSError):
        print(line, file=where, flush=True)
