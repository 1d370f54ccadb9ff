"""Replicas of one partition for stories: records with their epochs, and the two sides of copying played on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.transcript import Command
from tiered.errors import Code, Refused
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import NO_EPOCH, TopicId
from tiered.peers import Diverging, FetchedPart, FetchFrom
from tiered.replication.divergence import Led, judge
from tiered.replication.follower_step import Append, Held, StartOver, Step, Truncate, high_watermark, step

TOPIC_ID = TopicId("AAAAAAAAQACAAAAAAAAAAQ")


@dataclass
class Copy:
    """One replica: `records` from `start` on, each (epoch, what it says)."""

    start: int = 0
    records: list[tuple[int, str]] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    leader_epoch: int = 0
    high_watermark: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def append(self, epoch: int, said: str) -> None:
        self.epochs.assign(epoch, self.end)
        self.records.append((epoch, said))

    def ask(self) -> FetchFrom:
        return FetchFrom(TOPIC_ID, 0, self.leader_epoch, self.end, self.epochs.latest, self.start, self.start)

    def answer(self, asked: FetchFrom, cold_end: int = 0, log_start: int | None = None) -> FetchedPart:
        """As the leader."""
        low = self.start if log_start is None else log_start
        led = Led(self.leader_epoch, low, self.start, self.end, self.epochs)
        verdict = judge(asked, led)
        records = asked.offset.to_bytes(8, "big") if verdict is Code.NONE and asked.offset < self.end else b""
        return FetchedPart(
            TOPIC_ID,
            0,
            verdict.number if isinstance(verdict, Code) else 0,
            self.high_watermark,
            low,
            self.start,
            cold_end,
            verdict if isinstance(verdict, Diverging) else None,
            records,
        )

    def copy_from(self, leader: Copy) -> Step:
        """One question, its answer, and what becomes of it."""
        asked = self.ask()
        part = leader.answer(asked)
        found = step(asked, part, Held(self.start, self.end, self.epochs))
        if isinstance(found, Append):
            for epoch, said in leader.records[asked.offset - leader.start :]:
                self.append(epoch, said)
        elif isinstance(found, Truncate):
            self._cut(found.offset)
        elif isinstance(found, StartOver):
            self.start, self.records, self.epochs = found.offset, [], LeaderEpochs()
        if part.diverging is None:
            self.high_watermark = high_watermark(self.high_watermark, part.high_watermark, self.end)
        return found

    def _cut(self, offset: int) -> None:
        del self.records[max(offset - self.start, 0) :]
        self.epochs.truncate_from(offset)
        self.start = min(self.start, offset)
        self.high_watermark = min(self.high_watermark, offset)

    def __str__(self) -> str:
        said = " ".join(f"{each}/{epoch}" for epoch, each in self.records)
        return f"[{self.start},{self.end}) {said} hw={self.high_watermark}"


class Copying:
    """Plays transcripts."""

    def __init__(self) -> None:
        self._copies: dict[str, Copy] = {}

    def say(self, command: Command) -> str:
        name, *rest = command.words
        copy = self._copies.setdefault(name, Copy())
        match command.verb:
            case "replica":  # NAME record/epoch...: what it has; epoch= is whom it follows
                self._copies[name] = copy = Copy(high_watermark=command.number("hw", 0))
                copy.leader_epoch = command.number("epoch", 0)
                for each in rest:
                    said, epoch = each.split("/")
                    copy.append(int(epoch), said)
            case "lead":  # NAME EPOCH: everybody knows it
                for every in self._copies.values():
                    every.leader_epoch = int(rest[0])
                return f"epoch {rest[0]} begins at {copy.end}"
            case "append":  # NAME what: under the epoch that it leads
                copy.append(copy.leader_epoch, rest[0])
            case "commit":  # NAME: all in sync have everything
                copy.high_watermark = copy.end
            case "fetch":  # NAME LEADER
                return self._fetch(copy, self._copies[rest[0]])
            case "log":
                return str(copy)
            case _:
                raise AssertionError(command)
        return str(copy)

    @staticmethod
    def _fetch(copy: Copy, leader: Copy) -> str:
        asked = f"asks for {copy.end} after epoch {copy.epochs.latest}" if copy.epochs.latest != NO_EPOCH else "asks"
        try:
            part = leader.answer(copy.ask())
        except Refused as refused:
            return f"{asked}: {refused.code.name}"
        found = copy.copy_from(leader)
        parted = ""
        if part.diverging is not None:
            parted = f"parted, epoch {part.diverging.leader_epoch} ends at {part.diverging.end_offset}: "
        return f"{asked}: {parted}{found}\n{copy}"
