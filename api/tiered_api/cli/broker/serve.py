"""`tiered serve`: settings, the lock on the data directory, a broker and its HTTP interface, until SIGTERM or
Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tiered.broker.broker import Broker
from tiered.broker.encryption import inter_broker_net
from tiered.broker.process_metrics import add_process_metrics
from tiered.broker.real_world import real_world
from tiered.config.exposure import check_exposure, is_loopback
from tiered.config.listeners import WILDCARDS, Endpoint
from tiered.config.processes import count_processes, of_process
from tiered.config.rules import check_addresses
from tiered.config.settings import Settings, broker_rows, parse_address
from tiered.errors import Code, Refused, Unavailable
from tiered.metadata.changes import ScramCredentialSet
from tiered.metrics import Metrics
from tiered.records import native
from tiered.system.descriptors import describe_descriptors
from tiered.system.local_disk import LockFile
from tiered.system.network import SocketNet
from tiered.system.pauses import Pauses
from tiered_api.cli.broker.directories import (
    LOCK,
    claim_data_directory,
    refuse_cluster_directory,
)
from tiered_api.cli.broker.ephemeral import EphemeralDirectory, format_ephemeral, make_ephemeral
from tiered_api.cli.broker.log_output import log_to_stderr, open_audit_log, set_log_level
from tiered_api.cli.broker.machine import HTTP, format_ready, machine_store, parse_process, parse_shared, run_machine
from tiered_api.cli.broker.processes import plan_start, say_obstacle, settled_machine
from tiered_api.cli.broker.scram_users import add_users, read_credentials
from tiered_api.cli.broker.sources import load_settings
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import print_error
from tiered_api.http.server.server import HttpServer, serve_http
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.server.server import serve_kafka

log = logging.getLogger(__name__)

NO_SHARED: Mapping[str, socket.socket] = {}
GC_YOUNG_OBJECTS = 10_000
"""New objects after which the collector looks at them. The loop stands still meanwhile."""
GC_MIDDLE = 2
"""Looks at the new objects before one at those that outlived it: at twenty thousand, some 4 ms."""
GC_OLD = 4_000
"""Such looks before one at all objects, which takes 0.3 s where a crowd of fetches holds 600,000 of them. It found some
hundred to free there."""
GC_STARTING = 200_000
SWITCH_SECONDS = 0.0005
"""Time after which a thread passes the interpreter's lock on to one that waits. Each system call of the loop gives up
the lock, so beside a busy thread a request over TLS waits for it some ten times. Python's own value is 5 ms."""


@dataclass(frozen=True)
class RunningBroker:
    """A broker that serves."""

    broker: Broker
    url: str
    kafka: tuple[str, ...]
    """HOST:PORT of each listener."""


def serve(args: Namespace) -> NoReturn:
    """Runs a broker until it is stopped."""
    sys.setswitchinterval(SWITCH_SECONDS)
    # It restarts the processes of a machine, through their parent. systemd may send it to all of them.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # Objects of the start live on: collecting them would only take time. But a start may wait for days.
    gc.set_threshold(GC_STARTING, 50, 1000)
    ephemeral = make_ephemeral(args)
    try:
        _serve(args, ephemeral)
    finally:
        if ephemeral is not None:
            ephemeral.remove()


def _serve(args: Namespace, ephemeral: EphemeralDirectory | None) -> NoReturn:
    weakest = ephemeral.settings() if ephemeral is not None else {}
    chosen, warnings = load_settings(args.config, os.environ, args.pairs, option_settings(args), weakest)
    log_to_stderr(chosen.log_level)
    open_audit_log(chosen.tiered_audit_file)
    for warning in warnings:
        log.warning("%s", warning)
    check_exposure(chosen)
    check_addresses(chosen, broker_rows())
    if args.open is not None and not chosen.tiered_console_enable:
        raise Refused(Code.INVALID_CONFIG, "--open: tiered.console.enable=false ends the console")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if args.process is not None:
        chosen = of_process(chosen, *parse_process(args.process), machine_store(chosen))
    else:
        wanted = count_processes(chosen, cores)
        start = plan_start(chosen, wanted)
        say_obstacle(start, wanted)
        if start.count > 1:
            if ephemeral is not None:
                raise Refused(Code.INVALID_CONFIG, f"tiered.processes={start.count}: --ephemeral runs one process")
            sys.exit(run_machine(args, chosen, wanted, start, cores))
        if start.journal is not None:
            with settled_machine(chosen, wanted, start):
                pass
    users, shared = read_credentials(args.add_scram), parse_shared(args.shared)
    asyncio.run(_run_until_stopped(chosen, users, args.open, shared, ephemeral))


def option_settings(args: Namespace) -> dict[str, str]:
    """Returns the settings that have options of their own."""
    options = {
        "data.dir": args.data_dir,
        "store": args.store,
        "http": args.http,
        "kafka": args.kafka,
        "node.id": args.node_id,
    }
    return {name: text for name, text in options.items() if text is not None}


@contextlib.asynccontextmanager
async def run_broker(
    chosen: Settings,
    new_users: Sequence[ScramCredentialSet] = (),
    shared: Mapping[str, socket.socket] = NO_SHARED,
) -> AsyncIterator[RunningBroker]:
    """Yields a broker that is ready, and stops it cleanly at the end. It serves the sockets in `shared` too, by the
    name of the listener. Raises `Refused`, `Unavailable` or `Corrupt` if it cannot start."""
    refuse_cluster_directory(chosen.data_dir)
    claim_data_directory(chosen.data_dir)
    with LockFile(os.path.join(chosen.data_dir, LOCK)):
        world = real_world(chosen)
        net = inter_broker_net(world.net, chosen, lambda: broker.tls)
        peers = KafkaPeers(net, client_id=f"broker-{chosen.node_id}", login_node_id=chosen.inter_broker_login())
        metrics = Metrics()
        add_process_metrics(metrics)
        pauses = Pauses(world.clock, metrics)
        broker = Broker(
            chosen, world, metrics, peers=peers, log_level=set_log_level,
            describe_process=lambda: (*describe_descriptors(), *pauses.describe()),
        )  # fmt: skip
        watch = asyncio.create_task(pauses.watch(), name="pauses")
        try:
            async with _serve_http(broker, chosen) as http:
                await _check_addresses_free(broker, chosen)
                await broker.start()
                await add_users(broker, new_users)
                async with _serve_kafka(broker, chosen, http, shared) as running:
                    yield running
        finally:
            watch.cancel()
            await broker.stop()


async def _check_addresses_free(broker: Broker, chosen: Settings) -> None:
    """Checks the addresses of the Kafka protocol before the broker registers. Raises `Refused` for one that this
    machine cannot bind or without a certificate for it, and `Unavailable` for one that another process uses."""
    for each in chosen.effective_listeners():
        if each.is_encrypted:
            broker.tls.of_listener(each.name).check()
        try:
            (await broker.world.net.listen(each.host, each.port, lambda stream: stream.close())).close()
        except Unavailable as error:
            raise _address_error(error) from None


def _address_error(error: Unavailable) -> Refused | Unavailable:
    """Returns the error for an address that cannot be bound. An address in use may be free soon; for any other error, a
    retry would not help."""
    return Refused(Code.INVALID_CONFIG, str(error)) if error.final else error


@contextlib.asynccontextmanager
async def _serve_http(broker: Broker, chosen: Settings) -> AsyncIterator[HttpServer]:
    """Serves HTTP already during the start, so that clients can see that the broker waits for its bucket."""
    host, port = parse_address(chosen.http_address, "http")
    try:
        http = await serve_http(broker, host, port, has_tls=chosen.http_scheme == "https")
    except OSError as error:
        # asyncio puts a sentence of its own into strerror; errors of a resolver have numbers of their own.
        if error.errno and not isinstance(error, socket.gaierror):
            why = os.strerror(error.errno)
        else:
            why = error.strerror or str(error)
        final = error.errno != errno.EADDRINUSE
        raise _address_error(Unavailable(f"cannot listen on {chosen.http}: {why}", final=final)) from None
    try:
        yield http
    finally:
        await http.close()


@contextlib.asynccontextmanager
async def _serve_kafka(
    broker: Broker, chosen: Settings, http: HttpServer, shared: Mapping[str, socket.socket]
) -> AsyncIterator[RunningBroker]:
    """Serves the Kafka protocol of a broker that serves, and registers both addresses with the cluster. Serves the
    addresses that processes of this machine share once the cluster knows this one."""
    try:
        kafka = await serve_kafka(broker, paused=True)
    except Unavailable as error:
        raise _address_error(error) from None
    try:
        bound = tuple(kafka.addresses.values())
        for each in bound:
            if not is_loopback(each.host) and not each.requires_login:
                log.warning("kafka is reachable from other machines without a login host=%s", each.host)
        advertised = {
            each.name: each.address for each in chosen.resolve_advertised_listeners(bound, socket.gethostname())
        }
        has_port = parse_address(chosen.http_address, "http")[1]
        where = chosen.http_address if has_port else http.url.partition("://")[2]
        await broker.announce(where, advertised, _advertise_http(chosen, where))
        kafka.start_serving()
        for endpoint in chosen.effective_listeners():
            if endpoint.name in shared:
                await kafka.listen(endpoint, SocketNet(shared[endpoint.name]))
        if HTTP in shared:
            await http.share(shared[HTTP])
        yield RunningBroker(broker, http.url, tuple(each.address for each in bound))
        http.leave_shared()
        kafka.leave_shared()
        await broker.hand_over()
    finally:
        await kafka.close()


def _advertise_http(chosen: Settings, where: str) -> str:
    """Returns the origin for HTTP clients; "" if that is HOST:PORT of `where` without TLS."""
    host, port = parse_address(where, "http")
    if chosen.advertised_http or chosen.http_scheme == "http":
        return chosen.resolve_advertised_http(port)
    if host in WILDCARDS:
        known = chosen.resolve_advertised_listeners(chosen.effective_listeners(), socket.gethostname())
        host = known[0].host if known else socket.gethostname()
    return f"https://{Endpoint('HTTPS', host, port).address}"


async def _run_until_stopped(
    chosen: Settings,
    new_users: Sequence[ScramCredentialSet],
    page: str | None,
    shared: Mapping[str, socket.socket],
    ephemeral: EphemeralDirectory | None,
) -> NoReturn:
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()

    def request_stop() -> None:
        """Stops the broker. A start is cancelled, because it may take minutes (long recoveries, a slow bucket). A stop
        is completed."""
        if starting is not None and not stop_requested.is_set():
            starting.cancel()
        stop_requested.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, request_stop)
    try:
        async with run_broker(chosen, new_users, shared) as running, asyncio.TaskGroup() as group:
            starting = None
            _freeze_gc()
            warn_about_store(running.broker.world.store.url)
            warn_about_speed()
            print(
                ready_line(running) if ephemeral is None else format_ephemeral(running.url, running.kafka), flush=True
            )
            if page is not None:
                open_page(running.url, page)
            ends: list[asyncio.Task[object]] = [
                group.create_task(event.wait()) for event in (stop_requested, running.broker.ended)
            ]
            if ephemeral is not None:
                ends.append(group.create_task(ephemeral.wait_for_parent()))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in ends:
                each.cancel()
            log.info("stopping")
    except asyncio.CancelledError:
        if starting is None:
            raise
        log.info("stopped before it served")
        exit_process(Exit.OK, ephemeral)
    if running.broker.ended.is_set() and not stop_requested.is_set():
        print_error(running.broker.health().problems[0])
        exit_process(Exit.FAILED, ephemeral)
    exit_process(Exit.OK, ephemeral)


def exit_process(code: Exit, ephemeral: EphemeralDirectory | None = None) -> NoReturn:
    """Ends the process, now that all is closed. A busy thread would delay a normal exit: for minutes if it waits for a
    bucket that does not reply, for seconds if it decompresses a body."""
    if ephemeral is not None:
        ephemeral.remove()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _freeze_gc() -> None:
    """Excludes the objects of the start from garbage collection, and makes collections rarer: with ten thousand
    partitions a full collection takes 50 ms, in which no request is served."""
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, GC_MIDDLE, GC_OLD)
    gc.enable()


def warn_about_store(url: str) -> None:
    """Warns if the bucket is a directory or memory."""
    if url.startswith("memory:"):
        log.warning("the bucket is memory: everything ends with this process")
    elif url.startswith("file:"):
        log.info("the bucket is a directory: its records are only as safe as that disk store=%s", url)


def warn_about_speed() -> None:
    """Warns if the C extension is not in use."""
    if not native.NATIVE:
        log.warning("records are checked in plain Python, 10 to 30 times slower than in C why=%s", native.WHY_PURE)


def open_page(url: str, page: str) -> None:
    """Opens a page of the console in a browser. Most brokers never need the module."""
    from tiered_api.cli.broker.browser import open_console

    open_console(url, page)


def ready_line(running: RunningBroker) -> str:
    """Returns the line for users with the addresses of the broker."""
    broker = running.broker
    return format_ready(broker.settings, running.url, running.kafka, broker.world.store.url)
