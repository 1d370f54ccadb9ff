"""Runs transcripts of cold reads: each command prints what a reader gets, and how many requests the bucket got.

fill SEGMENTS [epoch=N]       the log grows by segments of four batches of ten records; the record at o is from 1000 * o
upload [epoch=N]              all closed segments go to the bucket
reader NAME                   a broker with nothing in memory but the manifest of this moment
read NAME OFFSET [bytes=N]    one read
scan NAME OFFSET              everything from there on
time NAME MS                  the first record that is not older
start OFFSET [epoch=N]        the log starts there; objects below are deleted after a second
fault KIND VERB               the next such request fails for every reader: ERROR, FLIPPED, TRUNCATED
wait MS                       time passes
objects                       the base offsets of the objects in the bucket
"""

from __future__ import annotations

from tests.transcript import Command
from tests.unit.cold.rig import PID, Broker, Rig
from tiered.cold.layout import parse_key
from tiered.cold.manifest import Manifest
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.records.native import walk

SEGMENT_RECORDS = 40


class ColdReadNarrator:
    """One partition: its local log, its objects, and brokers that read them."""

    def __init__(self) -> None:
        self._rig = Rig()
        self._writer = self._rig.broker("writer")
        self._manifest: Manifest | None = None
        self._readers: dict[str, Broker] = {}
        self._known: dict[str, Manifest | None] = {}
        """The manifest that each reader has."""
        self._end = 0

    def say(self, command: Command) -> str:
        async def play() -> str:
            try:
                return await getattr(self, f"_{command.verb}")(command)  # type: ignore[no-any-return]
            except Refused as refused:
                return f"refused: {refused.code.name}"
            except (Unavailable, Corrupt) as error:
                return f"{type(error).__name__.lower()}"

        return self._rig.run(play)

    async def _fill(self, command: Command) -> str:
        for _ in range(int(command.words[0])):
            self._rig.log.fill(self._end, 4, epoch=command.number("epoch", 1))
            self._end += SEGMENT_RECORDS
        return f"log ends at {self._end}"

    async def _upload(self, command: Command) -> str:
        self._manifest = await self._writer.upload_all(self._rig.log, command.number("epoch", 1))
        return f"cold end {self._manifest.cold_end_offset}"

    async def _reader(self, command: Command) -> str:
        (name,) = command.words
        self._readers[name], self._known[name] = self._rig.broker(name), self._manifest
        return ""

    async def _read(self, command: Command) -> str:
        name, offset = command.words
        broker = self._readers[name]
        before = dict(broker.store.calls)
        data = await broker.reader.read(PID, self._known[name], int(offset), command.number("bytes", 1))
        found = walk(data).batches
        if not found:
            return f"nothing, {_requests(broker, before)}"
        return f"{found[0].base_offset} to {found[-1].last_offset}, {_requests(broker, before)}"

    async def _scan(self, command: Command) -> str:
        name, offset = command.words
        broker = self._readers[name]
        before = dict(broker.store.calls)
        found = [piece async for piece in broker.reader.iterate(PID, int(offset), manifest=self._known[name])]
        objects = len({piece.entry.key for piece in found})
        where = f"{found[0].base_offset} to {found[-1].next_offset - 1} of {objects} objects" if found else "nothing"
        return f"{where}, {_requests(broker, before)}"

    async def _time(self, command: Command) -> str:
        name, timestamp = command.words
        broker = self._readers[name]
        before = dict(broker.store.calls)
        found = await broker.reader.offset_for_timestamp(PID, int(timestamp), manifest=self._known[name])
        where = "nothing" if found is None else f"offset={found[0]} timestamp={found[1]}"
        return f"{where}, {_requests(broker, before)}"

    async def _start(self, command: Command) -> str:
        offset, epoch = int(command.words[0]), command.number("epoch", 1)
        manifest = await self._writer.take_over(epoch)
        self._manifest = await self._writer.collector.advance_start(manifest, epoch, offset)
        await self._rig.clock.sleep(2)
        await self._writer.collector.delete_expired()
        return f"log start {self._manifest.log_start_offset}"

    async def _fault(self, command: Command) -> str:
        kind, verb = command.words
        for broker in self._readers.values():
            broker.fail(FaultRule(FaultKind[kind], (verb,), times=command.number("times", 1)))
        return ""

    async def _wait(self, command: Command) -> str:
        await self._rig.clock.sleep(int(command.words[0]) / 1000)
        return ""

    async def _objects(self, _: Command) -> str:
        names = [parse_key(key) for key in await self._rig.keys(".seg")]
        return " ".join(str(name.base_offset) for name in names if name is not None) or "none"


def _requests(broker: Broker, before: dict[str, int]) -> str:
    made = {verb: count - before.get(verb, 0) for verb, count in broker.store.calls.items()}
    return " ".join(f"{verb}s={count}" for verb, count in sorted(made.items()) if count) or "no request"
