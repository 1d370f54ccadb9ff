"""The plan of a machine that starts with another number of processes: which log moves from which process to which.

Pure. A process that is left out gives all its logs to the others. A new process takes a fair share from those that have
most, at its first start or at the next one at which logs can move. All other logs stay: an ordinary start moves
nothing. Logs move by renames, so only within one file system and only between directories whose processes stopped
cleanly: the clean mark proves what moves (I36).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.features import METADATA_VERSION, PROCESSES
from tiered.object_store.envelope import seal, unseal

VERSION = 1


class ProcessDirectory(NamedTuple):
    """The data directory of one process, as the machine finds it before any of its processes runs."""

    process: int
    device: int
    """The file system."""
    node_id: str = ""
    cluster_id: str = ""
    directory_id: str = ""
    """"" if no broker ran there, or if it gave all its logs away."""
    incarnation: str = ""
    """The incarnation that stopped cleanly there; "" if the last one did not."""
    logs: tuple[tuple[TopicPartition, TopicId], ...] = ()
    unnamed: tuple[str, ...] = ()
    """Directories of logs whose topic id cannot be read."""
    metadata_version: int = 0
    """The level of `tiered.metadata.version` that the last process there had seen."""
    has_adopted: bool = False
    """True if the metadata may not name this process for all its logs yet."""
    is_marked: bool = False
    """True if it has run, and waits for its share of the logs since its first start."""

    @property
    def is_new(self) -> bool:
        """True if it takes a share of the logs."""
        return self.is_marked or not (self.directory_id or self.logs or self.unnamed)


class Move(NamedTuple):
    """One log that moves from the process `giver` to the process `receiver`."""

    tp: TopicPartition
    topic_id: TopicId
    giver: int
    receiver: int


class Giver(NamedTuple):
    """A process that gives logs away: its broker, its data directory, and the last incarnation there."""

    process: int
    node_id: int
    directory_id: str
    incarnation: str
    is_left_out: bool
    """True if it gives all its logs away, and will not run."""


class Journal(NamedTuple):
    """All moves of one start. They are finished before any process runs."""

    givers: tuple[Giver, ...]
    moves: tuple[Move, ...]

    @property
    def processes(self) -> int:
        """The number of processes that runs all receivers."""
        return max((each.receiver for each in self.moves), default=0) + 1


def count_processes_with_logs(directories: Sequence[ProcessDirectory]) -> int:
    """Returns the number of processes that leaves none out that has logs, or is about to have them."""
    return max((each.process for each in directories if each.logs or each.unnamed or each.has_adopted), default=0) + 1


def plan_moves(directories: Sequence[ProcessDirectory], count: int) -> tuple[Move, ...]:
    """Returns the moves after which `count` processes have all logs. A log stays where no process that will run shares
    its file system."""
    stays, leaves = ([each for each in directories if (each.process < count) is runs] for runs in (True, False))
    plan = _Plan(stays)
    for giver in leaves:
        for tp, topic_id in giver.logs:
            plan.add(tp, topic_id, giver)
    plan.fill_new(count)
    return tuple(sorted(plan.moves))


def find_obstacle(directories: Sequence[ProcessDirectory], moves: Sequence[Move], count: int) -> str:
    """Returns why the moves cannot be made, or would not be all; "" if they can."""
    for each in directories:
        if each.has_adopted:
            return f"{name_of(each.process)} has logs that the cluster does not know there yet"
    involved = {each.giver for each in moves} | {each.receiver for each in moves}
    for each in directories:
        if each.process >= count and each.unnamed:
            return f"the topic id of {each.unnamed[0]} in {name_of(each.process)} cannot be read"
        moved = {move.tp for move in moves if move.giver == each.process}
        if each.process >= count and any(tp not in moved for tp, _ in each.logs):
            return f"{name_of(each.process)} is on another file system, and logs move by renames"
        is_proved = bool(each.directory_id and each.incarnation)
        if each.process in involved and not is_proved and (each.directory_id or each.logs):
            return f"{name_of(each.process)} did not stop cleanly"
        if each.process in {move.giver for move in moves} and each.metadata_version < PROCESSES:
            return f"{name_of(each.process)} has not seen {METADATA_VERSION}={PROCESSES} when it ran last"
    taken = {(each.process, tp) for each in directories for tp, _ in each.logs}
    for move in moves:
        if (move.receiver, move.tp) in taken:
            return f"{name_of(move.giver)} and {name_of(move.receiver)} both have a log of {move.tp}"
    if len({each.cluster_id for each in directories if each.process in involved and each.cluster_id}) > 1:
        return "its processes are of several clusters"
    return ""


def name_of(process: int) -> str:
    """Returns the name of a process in messages."""
    return f"process-{process}"


class _Plan:
    """Moves while they are chosen, and the logs that each process has after them."""

    def __init__(self, receivers: Sequence[ProcessDirectory]) -> None:
        self.moves: list[Move] = []
        self._receivers = receivers
        self._counts = {each.process: len(each.logs) for each in receivers}
        self._topics = Counter((each.process, tp.topic) for each in receivers for tp, _ in each.logs)

    def add(self, tp: TopicPartition, topic_id: TopicId, giver: ProcessDirectory) -> None:
        """Moves a log to the process with the fewest logs, and of these to the one with the fewest of the topic."""
        near = [each.process for each in self._receivers if each.device == giver.device]
        if near:
            self._move(
                tp, topic_id, giver.process, min(near, key=lambda p: (self._counts[p], self._topics[p, tp.topic], p))
            )

    def fill_new(self, count: int) -> None:
        """Moves a fair share to each process that never ran. The logs of a topic move in proportion."""
        fair = sum(self._counts.values()) // count
        for device in sorted({each.device for each in self._receivers}):
            near = [each for each in self._receivers if each.device == device]
            new = [each.process for each in near if each.is_new]
            self._take([each for each in near if each.process not in new], new, fair)

    def _take(self, donors: Sequence[ProcessDirectory], new: Sequence[int], fair: int) -> None:
        spare = Counter[int]()
        fullest = [(-self._counts[each.process], each.process) for each in donors]
        heapq.heapify(fullest)
        needed = sum(max(0, fair - self._counts[process]) for process in new)
        while needed and fullest and -fullest[0][0] > fair:
            negative, process = fullest[0]
            heapq.heapreplace(fullest, (negative + 1, process))
            spare[process] += 1
            needed -= 1
        for donor in donors:
            logs, given = sorted(donor.logs), min(spare[donor.process], len(donor.logs))
            for i in range(given):
                tp, topic_id = logs[(i + 1) * len(logs) // given - 1]
                receiver = min(new, key=lambda p: (self._counts[p], p))
                self._move(tp, topic_id, donor.process, receiver)

    def _move(self, tp: TopicPartition, topic_id: TopicId, giver: int, receiver: int) -> None:
        self.moves.append(Move(tp, topic_id, giver, receiver))
        self._counts[receiver] += 1
        self._topics[receiver, tp.topic] += 1
        if giver in self._counts:
            self._counts[giver] -= 1


def encode_journal(journal: Journal) -> bytes:
    """Returns the content of the file `log/moves`."""
    moves = [(*each.tp, each.topic_id, each.giver, each.receiver) for each in journal.moves]
    return seal({"version": VERSION, "givers": [tuple(each) for each in journal.givers], "moves": moves})


def parse_journal(data: bytes, where: str) -> Journal:
    """Returns the journal in the file. Raises `Corrupt`: moves that were begun have to be finished."""
    try:
        body = unseal(data, where)
        if body["version"] != VERSION:
            raise Corrupt(f"the file has version {body['version']!r}, this program reads {VERSION}", where=where)
        return Journal(
            tuple(
                Giver(int(process), int(node), str(directory), str(incarnation), bool(left_out))
                for process, node, directory, incarnation, left_out in body["givers"]
            ),
            tuple(
                Move(TopicPartition(str(topic), int(p)), TopicId(topic_id), int(giver), int(receiver))
                for topic, p, topic_id, giver, receiver in body["moves"]
            ),
        )
    except (Corrupt, KeyError, TypeError, ValueError) as error:
        why = error if isinstance(error, Corrupt) else "the file has another form"
        raise Corrupt(f"{why} (it names logs that were about to move between processes)", where=where) from None
