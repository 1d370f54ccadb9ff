"""`tiered serve` with several processes: it starts each of them as a broker and passes them the addresses that they
share. A process that ends is started again, and the others go on."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from tiered.broker.real_world import EMBEDDED_BUCKET
from tiered.config.processes import of_process
from tiered.config.settings import Settings, parse_address
from tiered.errors import Code, Refused, Unavailable
from tiered.system.network import bind_listener
from tiered_api.cli.broker.directories import claim_data_directory, refuse_cluster_directory
from tiered_api.cli.broker.processes import MachineStart, find_predecessors, settled_machine
from tiered_api.cli.broker.supervise import READY, Program, Supervisor, print_line, restart_on_signal, stop_on_signals
from tiered_api.cli.exits import Exit

log = logging.getLogger(__name__)

HTTP = "http"
"""Name of the HTTP interface among the shared addresses. Listeners of the Kafka protocol have capitals."""
OWN_NAME = "machine"
STOP_SECONDS = 100.0
"""Longest time in which a process hands its partitions over and makes its logs durable."""


@dataclass(frozen=True)
class Machine:
    """The processes to run, and the addresses that they share: listening sockets by the name of the listener."""

    settings: Settings
    processes: tuple[Settings, ...]
    shared: dict[str, socket.socket]

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(sock.fileno() for sock in self.shared.values())

    def address(self, name: str) -> str:
        """Returns HOST:PORT of a shared address."""
        host, port = self.shared[name].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def machine_store(machine: Settings) -> str:
    """Returns the URL of the bucket of all processes."""
    return machine.store or f"file://{quote(os.path.abspath(machine.data_dir))}/{EMBEDDED_BUCKET}"


def run_machine(args: Namespace, chosen: Settings, wanted: int, start: MachineStart, cores: int) -> Exit | int:
    """Runs the processes until SIGTERM or Ctrl-C. Raises `Refused` or `Unavailable` before anything is written. The
    settings ask for `wanted` processes."""
    count = start.count
    if chosen.store.startswith("memory:"):
        raise Refused(Code.INVALID_CONFIG, f"store={chosen.store}: processes cannot share memory")
    if not chosen.effective_listeners():
        why = "without a listener of the Kafka protocol the processes of a machine could not reach each other"
        raise Refused(Code.INVALID_CONFIG, f"kafka=: {why}")
    if count > cores:
        log.warning("more processes than cores: they will wait for each other processes=%d cores=%d", count, cores)
    refuse_cluster_directory(chosen.data_dir)
    processes = tuple(of_process(chosen, number, count, machine_store(chosen)) for number in range(count))
    shared = bind_shared(chosen)
    try:
        for each in processes:
            _check_ports_free(each)
        for each in processes:  # the first one has the machine's directory
            claim_data_directory(each.data_dir)
        with settled_machine(chosen, wanted, start):
            return asyncio.run(_run(args, Machine(chosen, processes, shared)))
    finally:
        for sock in shared.values():
            sock.close()


def bind_shared(machine: Settings) -> dict[str, socket.socket]:
    """Returns sockets that listen at the addresses of the machine's settings. Raises `Unavailable`."""
    wanted = {each.name: (each.host, each.port) for each in machine.effective_listeners()}
    wanted[HTTP] = parse_address(machine.http_address, HTTP)
    found: dict[str, socket.socket] = {}
    try:
        for name, (host, port) in wanted.items():
            found[name] = _bind(host, port)
    except BaseException:
        for sock in found.values():
            sock.close()
        raise
    return found


def _bind(host: str, port: int) -> socket.socket:
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise Unavailable(f"cannot resolve {host}: {error.strerror}", final=True) from None
    except UnicodeError:  # a label that is empty or too long
        raise Unavailable(f"cannot resolve {host}: it is no name of a host", final=True) from None
    family, _, _, _, address = min(places, key=lambda place: place[0] != socket.AF_INET)
    return bind_listener(family, address)  # type: ignore[arg-type]


def _check_ports_free(process: Settings) -> None:
    for endpoint in process.effective_listeners():
        _bind(endpoint.host, endpoint.port).close()
    _bind(*parse_address(process.http_address, HTTP)).close()


def process_command(args: Namespace, machine: Machine, number: int) -> Callable[[str], Sequence[str]]:
    """Returns the command that starts a process. Its first start adds the first users of the cluster."""
    options = {
        "--config": args.config, "--data-dir": args.data_dir, "--store": args.store, "--http": args.http,
        "--kafka": args.kafka, "--node-id": args.node_id,
    }  # fmt: skip
    words = [word for name, value in options.items() if value is not None for word in (name, value)]
    words += [word for pair in args.pairs for word in ("-c", pair)]
    for name, sock in machine.shared.items():
        words += ["--shared", f"{name}={sock.fileno()}"]
    started = [sys.executable, "-m", "tiered_api.cli.broker.child", str(os.getpid()), "serve", *words]
    started += ["--process", f"{number}/{len(machine.processes)}"]
    # The files of the first users may be gone at a later start, and a user may have been deleted.
    users = [word for user in args.add_scram for word in ("--add-scram", user)] if number == 0 else []
    return lambda ready_before: [*started, *(users if not ready_before else ())]


def parse_process(text: str) -> tuple[int, int]:
    """Returns the number of a process and the number of all, from `process_command`."""
    number, _, count = text.partition("/")
    return int(number), int(count)


def parse_shared(pairs: Sequence[str]) -> dict[str, socket.socket]:
    """Returns the listening sockets that `process_command` passed, by the name of the listener."""
    found: dict[str, socket.socket] = {}
    for pair in pairs:
        name, _, descriptor = pair.partition("=")
        sock = found[name] = socket.socket(fileno=int(descriptor))
        sock.setblocking(False)
        os.set_inheritable(sock.fileno(), False)
    return found


def ready_line(machine: Machine) -> str:
    """Returns the line for users with the shared addresses."""
    url = f"{machine.settings.http_scheme}://{machine.address(HTTP)}"
    kafka = [machine.address(name) for name in machine.shared if name != HTTP]
    return (
        f"{format_ready(machine.settings, url, kafka, machine.processes[0].store)} processes={len(machine.processes)}"
    )


def format_ready(settings: Settings, url: str, kafka: Sequence[str], store: str) -> str:
    """Returns the line that tells users the addresses, once they are served."""
    listeners = f" kafka={','.join(kafka)}" if kafka else ""
    console = f"console {url}/console/, " if settings.tiered_console_enable else ""
    pages = f"({console}health {url}/healthz, metrics {url}/metrics)"
    return f"{READY}{url} {pages}{listeners} store={store}"


async def _run(args: Namespace, machine: Machine) -> Exit | int:
    names = [f"process-{each.process}" for each in machine.processes]
    width = max(map(len, names))

    def print_output(name: str, line: str) -> None:
        print_line(f"{name:<{width}} | {line}", sys.stderr)

    def on_ready(_: Sequence[str]) -> None:
        print_line(ready_line(machine), sys.stdout)
        if args.open is not None:
            from tiered_api.cli.broker.browser import open_console

            open_console(f"{machine.settings.http_scheme}://{machine.address(HTTP)}", args.open)

    after = find_predecessors(machine.settings, len(names))
    programs = [
        Program(
            name, process_command(args, machine, number), READY, machine.descriptors,
            frozenset(names[each] for each in after.get(number, ())),
        )
        for number, name in enumerate(names)
    ]  # fmt: skip
    fleet = Supervisor(programs, print_output, OWN_NAME, stop_seconds=STOP_SECONDS)
    stop_on_signals(fleet)
    restart_on_signal(fleet)
    return await fleet.run(on_ready)
