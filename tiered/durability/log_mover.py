"""The renames that move logs between the processes of a machine, before any of its processes runs (I36).

`log/moves` in the directory of the first process is the journal. It is durable before the first change and is removed
last, and each step may be repeated: a machine that is killed in the middle goes on at its next start. The order is

1. the lines of the checkpoints and the file `log/adopted`, at the receiver: a log is never there without them;
2. the renames, and both directories made durable;
3. `meta.properties` of a process that gave all its logs away: it counts as new from then on.

The giver keeps its own lines of the checkpoints. If it runs before the receiver has registered, it finds its logs gone
and says so; it never counts as whole without them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tiered.config.processes import process_directory
from tiered.durability import metadata_position
from tiered.durability.adopted_logs import ADOPTED_FILE, AdoptedLog, encode_adopted
from tiered.durability.data_directory import DELETE_SUFFIX, META_FILE, ROOT, parse_log_name, parse_properties
from tiered.durability.move_plan import (
    Giver,
    Journal,
    Move,
    ProcessDirectory,
    encode_journal,
    name_of,
    parse_journal,
)
from tiered.errors import Code, Corrupt, Refused
from tiered.hot import checkpoints
from tiered.ids import PROCESS_STEP, TopicId, TopicPartition
from tiered.ports import Disk
from tiered.system.turns import each_of

log = logging.getLogger(__name__)

JOURNAL = "moves"
MARK = "share-due"
"""Marks a process that started without its share of the logs, because logs could not move then."""
CHECKPOINTS = (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS)


def log_folder(process: int) -> str:
    """Returns the folder of the logs of a process, below the directory of the machine."""
    return process_directory(".", process) + f"/{ROOT}"


def read_directory(disk: Disk, process: int, device: int, *, topic_ids: bool = True) -> ProcessDirectory:
    """Returns what the directory of a process says. `disk` is that of the machine. Without `topic_ids` all topics have
    the id "": no log is read then."""
    folder = log_folder(process)
    held = (checkpoints.load(disk, folder, META_FILE) or b"").decode(errors="replace")
    rows = dict(parse_properties(held.splitlines()))
    logs: list[tuple[TopicPartition, TopicId]] = []
    unnamed: list[str] = []
    for name in disk.list(folder):
        if (tp := parse_log_name(name)) is None:
            continue
        try:
            logs.append((tp, _read_topic_id(disk, f"{folder}/{name}") if topic_ids else TopicId("")))
        except Corrupt:
            unnamed.append(name)
    return ProcessDirectory(
        process,
        device,
        rows.get("node.id", ""),
        rows.get("cluster.id", ""),
        rows.get("directory.id", ""),
        checkpoints.parse_clean_mark(checkpoints.load(disk, folder, checkpoints.CLEAN_MARK) or b""),
        tuple(logs),
        tuple(unnamed),
        _read_level(disk, folder),
        disk.exists(f"{folder}/{ADOPTED_FILE}"),
        disk.exists(f"{folder}/{MARK}"),
    )


def _read_topic_id(disk: Disk, folder: str) -> TopicId:
    metadata = checkpoints.load(disk, folder, checkpoints.METADATA_FILE)
    return TopicId(checkpoints.parse_metadata(metadata or b"", where=folder))


def _read_level(disk: Disk, folder: str) -> int:
    """Returns the level of the metadata that the last process noted; 0 without a note."""
    data = checkpoints.load(disk, folder, metadata_position.FILE)
    try:
        return metadata_position.parse(data).metadata_version if data is not None else 0
    except Corrupt:
        return 0


def read_journal(disk: Disk) -> Journal | None:
    """Returns the moves that an earlier start began, or None. Raises `Corrupt`."""
    data = checkpoints.load(disk, log_folder(0), JOURNAL)
    return parse_journal(data, f"{ROOT}/{JOURNAL}") if data is not None else None


def make_journal(directories: Sequence[ProcessDirectory], moves: Sequence[Move], node_id: int, count: int) -> Journal:
    """Returns the journal of a plan. The first process of the machine is the broker `node_id`."""
    giving = {each.giver for each in moves}
    givers = (
        Giver(
            each.process, node_id + PROCESS_STEP * each.process, each.directory_id, each.incarnation,
            each.process >= count,
        )
        for each in directories
        if each.process in giving
    )  # fmt: skip
    return Journal(tuple(givers), tuple(moves))


async def mark_new(disk: Disk, processes: Sequence[int], marked: Sequence[int]) -> None:
    """Marks those of the processes that still wait for their share of the logs, and no others."""
    for process in processes:
        folder = log_folder(process)
        if process in marked:
            await _make_log_folder(disk, process)
            await checkpoints.save(disk, folder, MARK, b"")
        elif disk.exists(f"{folder}/{MARK}"):
            disk.remove(f"{folder}/{MARK}")
            await disk.sync_dir(folder)


async def _make_log_folder(disk: Disk, process: int) -> None:
    for path in (process_directory(".", process), log_folder(process)):
        disk.make_dirs(path)
    await disk.sync_dir(".")
    await disk.sync_dir(process_directory(".", process))


async def begin_moves(disk: Disk, journal: Journal) -> None:
    """Writes the journal, once the clean marks that it names are durable with all folders above them, and carries it
    out. A process without a record of its own may never have synced these folders, and the first one may have none."""
    await _make_log_folder(disk, 0)
    for giver in journal.givers:
        for path in (".", process_directory(".", giver.process), log_folder(giver.process)):
            await disk.sync_dir(path)
    await checkpoints.save(disk, log_folder(0), JOURNAL, encode_journal(journal))
    await finish_moves(disk, journal)


async def finish_moves(disk: Disk, journal: Journal) -> None:
    """Carries out a journal, as far as that is not done yet. Raises `Refused` if the directories changed since, and
    `Unavailable` if the disk fails."""
    _check_unchanged(disk, journal)
    for receiver in sorted({each.receiver for each in journal.moves}):
        await _prepare_receiver(disk, journal, receiver)
    async for each in each_of(journal.moves):
        _rename(disk, each)
    # The receivers first: a power cut may leave a log under both names, and never under none.
    for process in (*sorted({each.receiver for each in journal.moves}), *(each.process for each in journal.givers)):
        await disk.sync_dir(log_folder(process))
    for giver in journal.givers:
        if giver.is_left_out:
            folder = log_folder(giver.process)
            for name in disk.list(folder):
                if name.endswith(DELETE_SUFFIX):
                    await disk.discard(f"{folder}/{name}")
            disk.remove(f"{folder}/{META_FILE}")
            await disk.sync_dir(folder)
    disk.remove(f"{log_folder(0)}/{JOURNAL}")
    await disk.sync_dir(log_folder(0))


def _check_unchanged(disk: Disk, journal: Journal) -> None:
    """Refuses to go on if a giver ran since its logs began to move: its clean mark is another one then."""
    for giver in journal.givers:
        mark = checkpoints.load(disk, log_folder(giver.process), checkpoints.CLEAN_MARK) or b""
        if checkpoints.parse_clean_mark(mark) != giver.incarnation:
            why = (
                f"{name_of(giver.process)} ran since its logs began to move to other processes: {ROOT}/{JOURNAL} of the"
                " data directory names them; put each back where it was, or remove that file to leave them"
            )
            raise Refused(Code.INVALID_CONFIG, why)


async def _prepare_receiver(disk: Disk, journal: Journal, receiver: int) -> None:
    """Gives a receiver the lines of the checkpoints of its new logs, and the file that names these logs."""
    folder = log_folder(receiver)
    await _make_log_folder(disk, receiver)
    moves = [each for each in journal.moves if each.receiver == receiver]
    for name in CHECKPOINTS:
        lines = _load_lines(disk, folder, name)
        for giver in journal.givers:
            given = _load_lines(disk, log_folder(giver.process), name)
            mine = (each.tp for each in moves if each.giver == giver.process)
            for tp in mine:
                lines.pop(tp, None)
                if tp in given:
                    lines[tp] = given[tp]
        rows = [row async for row in each_of(checkpoints.encode_offset_rows(sorted(lines.items())))]
        await checkpoints.save(disk, folder, name, checkpoints.encode_rows(rows))
    givers = {each.process: each for each in journal.givers}
    adopted = (
        AdoptedLog(each.tp, each.topic_id, giver.node_id, giver.directory_id, giver.incarnation)
        for each in moves
        if (giver := givers[each.giver])
    )
    await checkpoints.save(disk, folder, ADOPTED_FILE, encode_adopted(adopted))


def _load_lines(disk: Disk, folder: str, name: str) -> dict[TopicPartition, int]:
    """Returns the lines of a checkpoint. A start reads a corrupt one as empty, too."""
    try:
        return checkpoints.parse_offsets(checkpoints.load(disk, folder, name) or b"", where=name)
    except Corrupt as error:
        log.warning("checkpoint is not used name=%s/%s why=%s", folder, name, error)
        return {}


def _rename(disk: Disk, move: Move) -> None:
    old, new = (f"{log_folder(process)}/{move.tp}" for process in (move.giver, move.receiver))
    if disk.exists(old) and disk.exists(new):
        raise Refused(Code.INVALID_CONFIG, f"{old} cannot move: there is a {new} already: remove the one that is wrong")
    if disk.exists(old):
        disk.rename(old, new)
    elif not disk.exists(new):
        log.error("log that was to move is gone partition=%s from=%s to=%s", move.tp, old, new)
