"""`tiered up`: a cluster on one machine. Each broker is a `tiered serve` with its own directory and ports. They share a
store, and that makes them one cluster."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

from tiered.config.settings import Settings, parse_address
from tiered.errors import Code, Refused
from tiered.system.local_disk import LockFile
from tiered.value import value
from tiered_api.cli.broker.directories import LOCK, broker_directory, claim_data_directory, refuse_broker_directory
from tiered_api.cli.broker.sources import load_settings
from tiered_api.cli.broker.supervise import READY, Program, Supervisor, print_line, stop_on_signals
from tiered_api.kafka.client.client import Address

PER_BROKER_SETTINGS = (
    "tiered.processes",
    "node.id",
    "data.dir",
    "http",
    "kafka",
    "listeners",
    "advertised.listeners",
    "advertised.http",
)
"""Settings that no two brokers of a machine can share."""
OWN_NAME = "up"


@value
class BrokerSpec:
    """One broker: its number, its directory, and HOST:PORT for HTTP and Kafka (port 0: any free one)."""

    node_id: int
    directory: str
    kafka: Address
    http: Address

    @property
    def name(self) -> str:
        return f"broker-{self.node_id}"


@value
class ClusterPlan:
    """The brokers to run."""

    directory: str
    store: str
    brokers: tuple[BrokerSpec, ...]
    common: tuple[str, ...]
    """Options that are passed to each broker."""


def up(args: Namespace) -> int:
    """Runs the brokers until Ctrl-C or SIGTERM."""
    cluster_plan = plan_cluster(args)
    claim_data_directory(cluster_plan.directory)
    with LockFile(os.path.join(cluster_plan.directory, LOCK)):
        return asyncio.run(_run(cluster_plan))


def plan_cluster(args: Namespace) -> ClusterPlan:
    """Returns the plan for the command line. Raises `Refused` if it is impossible; nothing has been started then."""
    for pair in args.pairs:
        name = pair.partition("=")[0].strip()
        if name in PER_BROKER_SETTINGS:
            raise Refused(Code.INVALID_CONFIG, f"-c {pair}: each broker has its own; see --data-dir, --kafka, --http")
    directory = os.path.abspath(args.data_dir)
    refuse_broker_directory(directory)
    kafka, http = _parse_address(args.kafka, "kafka"), _parse_address(args.http, "http")
    places = tuple(
        BrokerSpec(
            number + 1,
            broker_directory(directory, number + 1),
            _broker_address(kafka, number, "kafka"),
            _broker_address(http, number, "http"),
        )
        for number in range(args.brokers)
    )
    store = _check_store(args, places[0], directory)
    common = [*(("--config", args.config) if args.config is not None else ())]
    for pair in args.pairs:
        common += ["-c", pair]
    return ClusterPlan(directory, store, places, tuple(common))


def _parse_address(text: str, option: str) -> Address:
    if not text:
        raise Refused(Code.INVALID_CONFIG, f"--{option}: it must be HOST:PORT")
    return Address(*parse_address(text, option))


def _broker_address(first: Address, number: int, option: str) -> Address:
    """Returns the address of a broker: ports count up from that of the first."""
    port = first.port + number if first.port else 0
    if port > 65535:
        raise Refused(Code.INVALID_CONFIG, f"--{option} {first}: there is no port {port} for broker {number + 1}")
    return first._replace(port=port)


def _check_store(args: Namespace, spec: BrokerSpec, directory: str) -> str:
    """Checks the bucket of all brokers, and the settings for the first broker: what it would refuse is refused here."""
    options = {"data.dir": spec.directory, "node.id": str(spec.node_id), "http": str(spec.http)}
    options |= {"kafka": str(spec.kafka)} | ({"store": args.store} if args.store is not None else {})
    chosen: Settings = load_settings(args.config, os.environ, args.pairs, options)[0]
    for name, given in (("listeners", chosen.listeners), ("advertised.listeners", chosen.advertised_listeners)):
        if given:
            raise Refused(Code.INVALID_CONFIG, f"{name}={','.join(given)}: each broker has its own; see --kafka")
    if chosen.tiered_processes != "1":
        why = "each broker of `up` is one process; --brokers says how many there are"
        raise Refused(Code.INVALID_CONFIG, f"tiered.processes={chosen.tiered_processes}: {why}")
    if chosen.advertised_http:
        raise Refused(Code.INVALID_CONFIG, f"advertised.http={chosen.advertised_http}: each broker has its own")
    if chosen.store.startswith("memory:"):
        raise Refused(Code.INVALID_CONFIG, f"store={chosen.store}: brokers are processes and cannot share memory")
    return chosen.store or f"file://{directory}/bucket"


def broker_command(cluster_plan: ClusterPlan, spec: BrokerSpec) -> Callable[[str], Sequence[str]]:
    """Returns the command that starts a broker. A restart uses the ports of the last start, even if any free port was
    requested."""

    def words(ready_line: str) -> list[str]:
        http, kafka = (str(spec.http), str(spec.kafka)) if not ready_line else ready_addresses(ready_line)
        return [
            sys.executable, "-m", "tiered_api.cli.broker.child", str(os.getpid()), "serve", *cluster_plan.common,
            "--node-id", str(spec.node_id), "--data-dir", spec.directory, "--store", cluster_plan.store,
            "--http", http, "--kafka", kafka,
        ]  # fmt: skip

    return words


def ready_addresses(ready_line: str) -> tuple[str, str]:
    """Returns HOST:PORT of HTTP and of the Kafka protocol from the ready line of a broker."""
    found = re.match(rf"{READY}http://(\S+) .*? kafka=([^\s,]+)", ready_line)
    assert found is not None, ready_line
    return found[1], found[2]


def ready_line(cluster_plan: ClusterPlan, ready_lines: Sequence[str]) -> str:
    """Returns the line for users with the addresses of the cluster."""
    each = [ready_addresses(line) for line in ready_lines]
    kafka = ",".join(kafka for _, kafka in each)
    http = ",".join(f"http://{http}" for http, _ in each)
    count = f"{len(each)} broker{'s' if len(each) > 1 else ''}"
    console = f" console=http://{each[0][0]}/console/" if "/console/" in ready_lines[0] else ""
    return f"{READY}{count} kafka={kafka} http={http}{console} store={cluster_plan.store}"


async def _run(cluster_plan: ClusterPlan) -> int:
    width = max(len(place.name) for place in cluster_plan.brokers)

    def print_output(name: str, line: str) -> None:
        print_line(f"{name:<{width}} | {line}", sys.stderr)

    programs = [Program(place.name, broker_command(cluster_plan, place), READY) for place in cluster_plan.brokers]
    fleet = Supervisor(programs, print_output, OWN_NAME)
    stop_on_signals(fleet)
    return int(await fleet.run(lambda said: print_line(ready_line(cluster_plan, said), sys.stdout)))
