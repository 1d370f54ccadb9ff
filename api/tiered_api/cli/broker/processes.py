"""The number of processes that a machine starts, and the moves of logs between them before any of them runs (I36).

Logs move once each process that gives or takes some has stopped cleanly. Before that they stay where they are, and the
log says why: a process with logs is not left out, and a new one is marked and gets its share later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tiered.config.processes import process_directory
from tiered.config.settings import Settings
from tiered.durability.adopted_logs import ADOPTED_FILE, parse_adopted
from tiered.durability.data_directory import ROOT
from tiered.durability.log_mover import (
    JOURNAL,
    begin_moves,
    finish_moves,
    log_folder,
    make_journal,
    mark_new,
    read_directory,
    read_journal,
)
from tiered.durability.move_plan import (
    Journal,
    ProcessDirectory,
    count_processes_with_logs,
    find_obstacle,
    name_of,
    plan_moves,
)
from tiered.errors import Code, Refused, Unavailable
from tiered.hot import checkpoints
from tiered.ids import PROCESS_STEP
from tiered.ports import Disk
from tiered.system.local_disk import LocalDisk, LockFile
from tiered_api.cli.broker.directories import LOCK, MACHINE_LOCK

log = logging.getLogger(__name__)

PROCESS_NAME = re.compile(r"process-([0-9]+)")


@dataclass(frozen=True)
class MachineStart:
    """The number of processes to start, and the moves to make before that. `is_begun`: an earlier start has begun
    them. `why` says why logs stay where they are, and `marked` are the new processes that get their share later."""

    count: int
    journal: Journal | None = None
    is_begun: bool = False
    why: str = ""
    marked: tuple[int, ...] = ()


def plan_start(chosen: Settings, wanted: int) -> MachineStart:
    """Returns the start of a machine whose settings ask for `wanted` processes. Changes nothing. Raises `Refused` for a
    directory of another machine, and `Corrupt` for a damaged journal."""
    directory = chosen.data_dir
    processes, has_journal = list_processes(directory), os.path.exists(os.path.join(directory, ROOT, JOURNAL))
    if not os.path.isdir(directory) or (wanted == 1 and processes == [0] and not has_journal):
        return MachineStart(wanted)
    devices = {number: _device_of(directory, number) for number in sorted({*processes, *range(wanted)})}
    with _open_disk(directory) as disk:
        return plan_start_on(disk, devices, chosen, wanted)


def plan_start_on(disk: Disk, devices: Mapping[int, int], chosen: Settings, wanted: int) -> MachineStart:
    """Returns the same, given the disk of the machine and the file systems of its processes, of those to come too."""
    found = [read_directory(disk, *each, topic_ids=False) for each in devices.items()]
    journal = read_journal(disk)
    if journal is None and plan_moves(found, wanted):
        found = [read_directory(disk, *each) for each in devices.items()]
    _check_owners(chosen, found)
    if journal is not None:
        left_out = {each.process for each in journal.givers if each.is_left_out}
        stays = count_processes_with_logs([each for each in found if each.process not in left_out])
        count = max(wanted, stays, journal.processes)
        receivers = {each.receiver for each in journal.moves}
        marked = tuple(each.process for each in found if each.is_new and each.process not in receivers)
        why = f"{name_of(journal.processes - 1)} gets logs that the cluster does not know there yet"
        return MachineStart(count, journal, True, why if marked or count != wanted else "", marked)
    moves, known = plan_moves(found, wanted), count_processes_with_logs(found)
    why = find_obstacle(found, moves, wanted) if moves or known > wanted else ""
    if why:
        return MachineStart(max(wanted, known), why=why, marked=tuple(each.process for each in found if each.is_new))
    return MachineStart(wanted, make_journal(found, moves, chosen.node_id, wanted) if moves else None)


def list_processes(directory: str) -> list[int]:
    """Returns the numbers of the processes with a directory, the first one included."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return sorted({0, *(int(found[1]) for name in names if (found := PROCESS_NAME.fullmatch(name)))})


def find_predecessors(chosen: Settings, count: int) -> dict[int, frozenset[int]]:
    """Returns, by process, the processes that have to be ready before it starts: those that took logs from it. It would
    find these logs gone before the cluster knows where they are."""
    with _open_disk(chosen.data_dir) as disk:
        return find_predecessors_on(disk, chosen, count)


def find_predecessors_on(disk: Disk, chosen: Settings, count: int) -> dict[int, frozenset[int]]:
    """Returns the same, given the disk of the machine."""
    found: dict[int, set[int]] = {}
    for receiver in range(count):
        data = checkpoints.load(disk, log_folder(receiver), ADOPTED_FILE)
        path = f"{process_directory(chosen.data_dir, receiver)}/{ROOT}/{ADOPTED_FILE}"
        for node in {each.from_node for each in (parse_adopted(data, path) if data is not None else ())}:
            giver = (node - chosen.node_id) // PROCESS_STEP
            found.setdefault(giver, set()).add(receiver)
    return {giver: frozenset(receivers) for giver, receivers in found.items() if giver < count}


def say_obstacle(start: MachineStart, wanted: int) -> None:
    """Logs why logs stay where they are, although the number of processes is another one."""
    if start.why and start.count != wanted:
        log.warning(
            "machine starts %d processes and not %d, because %s: a start after a clean stop of these has %d",
            start.count, wanted, start.why, wanted,
        )  # fmt: skip
    elif start.why:
        log.warning("logs do not move to new processes, because %s: a start after a clean stop moves them", start.why)


@contextlib.contextmanager
def settled_machine(chosen: Settings, wanted: int, start: MachineStart) -> Iterator[None]:
    """Holds the lock of the machine, after its logs were moved as `start` says. Raises `Unavailable` while one of its
    processes runs, or if the directories changed since they were read."""
    with LockFile(os.path.join(chosen.data_dir, MACHINE_LOCK)):
        with contextlib.ExitStack() as locks:
            for number in list_processes(chosen.data_dir):
                locks.enter_context(LockFile(os.path.join(process_directory(chosen.data_dir, number), LOCK)))
            if plan_start(chosen, wanted) != start:
                raise Unavailable(f"the logs in {chosen.data_dir} changed during this start: start again")
            with _open_disk(chosen.data_dir) as disk:
                asyncio.run(carry_out(disk, start))
        yield


async def carry_out(disk: Disk, start: MachineStart) -> None:
    """Makes the directories of new processes durable before one of them takes a record, moves the logs, and marks the
    processes that wait for their share. Each step may be repeated."""
    await disk.sync_dir(".")
    journal, began = start.journal, time.monotonic()
    if journal is not None:
        await (finish_moves(disk, journal) if start.is_begun else begin_moves(disk, journal))
        seconds = time.monotonic() - began
        log.info("logs moved between the processes of this machine logs=%d seconds=%.1f", len(journal.moves), seconds)
    await mark_new(disk, range(start.count), start.marked)


@contextlib.contextmanager
def _open_disk(directory: str) -> Iterator[LocalDisk]:
    disk = LocalDisk(directory)
    try:
        yield disk
    finally:
        disk.close()


def _device_of(directory: str, process: int) -> int:
    """Returns the file system of a process, or of the machine if the process has no directory yet."""
    path = process_directory(directory, process)
    return os.stat(path if os.path.isdir(path) else directory).st_dev


def _check_owners(chosen: Settings, found: list[ProcessDirectory]) -> None:
    for each in found:
        node = chosen.node_id + PROCESS_STEP * each.process
        if each.node_id not in ("", str(node)):
            path = process_directory(chosen.data_dir, each.process)
            why = f"node.id={chosen.node_id}: {path} belongs to node {each.node_id}, and would be that of node {node}"
            raise Refused(Code.INVALID_CONFIG, why)
