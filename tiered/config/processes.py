"""The processes of one machine: with `tiered.processes` above 1, `tiered serve` runs as many brokers under one
configuration.

Process k of the machine with node id N is the broker N + 1000 k, counted from 0. Clients find all of them at the
addresses of the configuration, which the processes share. Each process has an address of its own beside these and
advertises it, so that clients of the Kafka protocol talk to leaders directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiered.config.listeners import parse_host_port
from tiered.config.settings import INT_MAX, Settings, broker_rows
from tiered.errors import Code, Refused
from tiered.ids import PROCESS_STEP, PROCESSES_MAX

AUTO = "auto"
COUNTED_TOGETHER = frozenset({"tiered.store.request.rate"})
"""Numbers of the machine of which each process has the whole: its processes tell each other what clients used."""
PORT_MAX = 65535


def count_processes(settings: Settings, cores: int) -> int:
    """Returns the number of processes that `tiered.processes` asks for on a machine with so many cores. Raises
    `Refused` (INVALID_CONFIG)."""
    text = settings.tiered_processes
    count = min(cores, PROCESSES_MAX) if text == AUTO else int(text) if text.isdecimal() else 0
    if not 1 <= count <= PROCESSES_MAX:
        raise broker_rows()["tiered.processes"].refuse(
            text, f"it must be {AUTO}, or a number from 1 to {PROCESSES_MAX}"
        )
    return count


def process_directory(data_dir: str, process: int) -> str:
    """Returns the data directory of a process. The first one has that of the machine, as a single process has."""
    return f"{data_dir.rstrip('/')}/process-{process}" if process else data_dir


def share_out(settings: Settings) -> Settings:
    """Returns the settings with the share of one process in each number that is the machine's. 0 stands for no limit in
    most of them, and stays."""
    if settings.processes == 1:
        return settings
    shares: dict[str, float] = {}
    for name, row in broker_rows().items():
        if row.of_machine and name not in COUNTED_TOGETHER:
            whole = getattr(settings, name.replace(".", "_"))
            part = whole // settings.processes if isinstance(whole, int) else whole / settings.processes
            shares[name.replace(".", "_")] = max(part, row.low or 0, min(whole, 1))
    return replace(settings, **shares)  # type: ignore[arg-type]


def of_process(machine: Settings, process: int, count: int, store: str) -> Settings:
    """Returns the settings of one of `count` processes, given those of its machine and the URL of its bucket. Numbers
    that are the machine's stay whole (`share_out`). Raises `Refused` for a port or a node id that there is not."""
    node_id = machine.node_id + PROCESS_STEP * process
    if node_id > INT_MAX:
        raise broker_rows()["node.id"].refuse(str(machine.node_id), f"process {process} would be the broker {node_id}")
    if machine.advertised_http and parse_host_port(machine.advertised_http.rpartition("://")[2]) is None:
        why = "it needs a port where a machine has several processes: each of them advertises its own"
        raise broker_rows()["advertised.http"].refuse(machine.advertised_http, why)
    return replace(
        machine,
        node_id=node_id,
        process=process,
        processes=count,
        data_dir=process_directory(machine.data_dir, process),
        store=store,
        kafka=_own_addresses((machine.kafka,), machine, process)[0] if machine.kafka else "",
        listeners=_own_addresses(machine.listeners, machine, process),
        advertised_listeners=_own_addresses(machine.advertised_listeners, machine, process),
        http=_own_addresses((machine.http,), machine, process)[0],
        advertised_http=_own_addresses((machine.advertised_http,), machine, process)[0],
    )


def _own_addresses(texts: Sequence[str], machine: Settings, process: int) -> tuple[str, ...]:
    return tuple(_own_address(text, machine.tiered_processes_port_step * (process + 1)) for text in texts)


def _own_address(text: str, step: int) -> str:
    """Returns `[NAME://]HOST:PORT` with another port. Port 0, which takes any free one, and an address without a port
    stay."""
    scheme, separator, address = text.rpartition("://")
    found = parse_host_port(address)
    if found is None or not found[1]:
        return text
    port = found[1] + step
    if port > PORT_MAX:
        why = f"a process would have the port {port}: choose lower ports, or a smaller tiered.processes.port.step"
        raise Refused(Code.INVALID_CONFIG, f"{text}: {why}")
    return f"{scheme}{separator}{address.rpartition(':')[0]}:{port}"
