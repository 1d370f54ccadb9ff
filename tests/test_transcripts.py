"""Tests of takeovers, new leaders, groups, transactions, compaction and cold reads, as files in tests/transcripts.

python -m tests.test_transcripts       writes the present outputs of the commands into the files
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim.harness.clock import SimClock, SimRng
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.store import SimBucket
from tests.sources import ROOT
from tests.transcript import Command, Say, commands, run_transcript
from tests.unit.cold.narrator import ColdReadNarrator
from tests.unit.groups.narrator import Narrator
from tests.unit.hot.narrator import CompactionNarrator
from tests.unit.replication.follower_rig import ReplicaTranscript
from tests.unit.transactions.narrator import TransactionNarrator
from tiered.errors import Fenced
from tiered.groups.limits import GroupSettings
from tiered.ids import TopicId
from tiered.metadata import layout
from tiered.metadata.changes import Change, ControllerElected, TopicCreated, to_json
from tiered.metadata.image import Image
from tiered.metadata.log_reader import load_metadata, read_boundary
from tiered.metadata.log_writer import MetadataLog
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultKind, FaultRule, Faults
from tiered.replication.leader_state import ColdLog, Lineage, RestartAtColdEnd, reconcile

FOLDER = ROOT / "tests" / "transcripts"
NODES = {"a": 1, "b": 2, "c": 3}


class Controllers:
    """Candidates for controller on one bucket, each with a connection of its own."""

    def __init__(self) -> None:
        self._loop = SimLoop(1)
        self._clock = SimClock(self._loop)
        self._bucket = SimBucket(self._loop)
        self._faults = {name: Faults(reply_seconds=1.0) for name in NODES}
        self._logs = {
            name: MetadataLog(self._bucket.store(faults, self._clock), self._clock, SimRng(name), Metrics())
            for name, faults in self._faults.items()
        }
        self._images: dict[str, Image] = {}

    def say(self, command: Command) -> str:
        async def play() -> str:
            try:
                return await getattr(self, f"_{command.verb.replace('-', '_')}")(command)  # type: ignore[no-any-return]
            except Fenced as error:
                return f"fenced: {error}"

        return self._loop.run(play())

    async def _load(self, command: Command) -> str:
        """NAME reads the log."""
        (name,) = command.words
        image = self._images[name] = await self._logs[name].load()
        return f"slot={image.slot} epoch={image.controller_epoch} topics={','.join(image.topics)}"

    async def _take(self, command: Command) -> str:
        """NAME becomes a candidate with the image that it has read."""
        (name,) = command.words
        image = self._images[name] = await self._logs[name].take_over(self._images[name], NODES[name], name)
        return f"slot={image.slot} epoch={image.controller_epoch} topics={','.join(image.topics)}"

    async def _create(self, command: Command) -> str:
        """NAME commits a topic."""
        name, topic = command.words
        changes: list[Change] = [TopicCreated(topic, TopicId(topic.ljust(22, "_")), ((NODES[name],),), {}, 0)]
        slot = await self._logs[name].append(changes)
        self._images[name] = self._images[name].apply(changes, slot)
        return f"slot={slot}"

    async def _die_creating(self, command: Command) -> str:
        """NAME dies with a put in flight, which lands `after` seconds."""
        name = command.words[0]
        self._faults[name].rules = [FaultRule(FaultKind.LATE_APPLY, ("put",), times=1, seconds=command.number("after"))]
        task = self._loop.create_task(self._create(command))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return "gone, its put is under way"

    async def _lose_reply(self, command: Command) -> str:
        """The next put of NAME lands, and its reply is lost."""
        self._faults[command.words[0]].rules = [FaultRule(FaultKind.LOST_REPLY, ("put",), times=1)]
        return ""

    async def _snapshot(self, command: Command) -> str:
        (name,) = command.words
        await self._logs[name].write_snapshot(self._images[name])
        boundary, _ = await read_boundary(self._bucket.memory)
        return f"snapshots={[each.slot for each in boundary.snapshots]} collected={boundary.collected}"

    async def _sleep(self, command: Command) -> str:
        await asyncio.sleep(int(command.words[0]))
        return ""

    async def _log(self, _: Command) -> str:
        """Prints the objects of the log in the bucket, slot by slot."""
        anybody = self._bucket.store(Faults(), self._clock)
        lines = []
        for item in await anybody.list(layout.LOG_PREFIX):
            slot = layout.slot_of(item.key)
            entry = layout.decode_entry(self._bucket.objects[item.key].data, slot)
            lines.append(f"slot={slot} epoch={entry.epoch} {' '.join(map(_words, entry.changes))}")
        return "\n".join(lines)

    async def _image(self, _: Command) -> str:
        """Prints the image that a reader loads."""
        image = (await load_metadata(self._bucket.memory)).image
        return f"slot={image.slot} epoch={image.controller_epoch} topics={','.join(image.topics)}"


def _words(change: Change) -> str:
    kind = to_json(change)["kind"]
    if isinstance(change, ControllerElected):
        return f"{kind} node={change.node_id}"
    return f"{kind} {change.name}" if isinstance(change, TopicCreated) else str(kind)


class NewLeader:
    """A new leader with its local log and a manifest, and its actions (rule R5)."""

    def __init__(self) -> None:
        self._local: tuple[int, int, Lineage] = (0, 0, ())
        self._cold = ColdLog(0, 0, ())

    def say(self, command: Command) -> str:
        match command.verb:
            case "local":
                self._local = command.number("start", 0), command.number("end"), _lineage(command)
            case "cold":
                self._cold = ColdLog(command.number("start", 0), command.number("end"), _lineage(command))
            case "lead":
                found = reconcile(*self._local, self._cold)
                if isinstance(found, RestartAtColdEnd):
                    return f"local log dropped: {found.why}\nepoch {command.words[0]} begins at {found.offset}"
                return f"epoch {command.words[0]} begins at {self._local[1]}"
            case _:
                raise AssertionError(command)
        return ""


def _lineage(command: Command) -> Lineage:
    rows = [row.split("@") for row in command.named.get("epochs", "").split(",") if row]
    return tuple((int(epoch), int(start)) for epoch, start in rows)


def controllers() -> Say:
    return Controllers().say


def new_leader() -> Say:
    return NewLeader().say


def copying() -> Say:
    return ReplicaTranscript().say


def group() -> Say:
    return Narrator(GroupSettings(retention_ms=60_000, retention_check_ms=10_000)).say


def transactions() -> Say:
    return TransactionNarrator().say


def compaction() -> Say:
    return CompactionNarrator().say


def cold_reads() -> Say:
    return ColdReadNarrator().say


SCENARIOS: dict[str, Callable[[], Say]] = {
    "controller_takeover": controllers,
    "controller_void_slot": controllers,
    "copies_fast_failover": copying,
    "copies_power_cut": copying,
    "copies_restart": copying,
    "new_leader": new_leader,
    "transaction_life": transactions,
    "transaction_move": transactions,
    "compaction": compaction,
    "cold_reads": cold_reads,
    "group_cooperative": group,
    "group_expiry": group,
    "group_leader_dies": group,
    "group_life": group,
    "group_move": group,
    "group_old_generation": group,
    "group_static_members": group,
}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.txt"


@pytest.mark.parametrize("name", SCENARIOS)
def test_transcript_prints_its_recorded_output(name: str) -> None:
    text = path_of(name).read_text()
    assert commands(path_of(name)) > 5
    assert run_transcript(text, SCENARIOS[name]()) == text


def test_every_transcript_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SCENARIOS)


def main() -> None:
    for name, world in SCENARIOS.items():
        path_of(name).write_text(run_transcript(path_of(name).read_text(), world()))


if __name__ == "__main__":
    main()
