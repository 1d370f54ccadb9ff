"""Model replicas of one partition: records with their epochs, and both sides of replication applied to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.transcript import Command
from tiered.errors import Code, Refused
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import NO_EPOCH, TopicId
from tiered.peers import DivergingEpoch, FetchedPartition, PartitionFetch
from tiered.replication.divergence import LeaderLog, validate_offset_and_epoch
from tiered.replication.follower_step import (
    Append,
    FollowerLog,
    FollowerStep,
    RestartAtLogStart,
    Truncate,
    decide_step,
    next_high_watermark,
)

TOPIC_ID = TopicId("AAAAAAAAQACAAAAAAAAAAQ")


@dataclass
class ModelReplica:
    """A replica with `records` from `start` on, each (leader epoch, value)."""

    start: int = 0
    records: list[tuple[int, str]] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    leader_epoch: int = 0
    high_watermark: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def append(self, epoch: int, value: str) -> None:
        self.epochs.assign(epoch, self.end)
        self.records.append((epoch, value))

    def build_fetch(self) -> PartitionFetch:
        return PartitionFetch(TOPIC_ID, 0, self.leader_epoch, self.end, self.epochs.latest, self.start, self.start)

    def reply(self, request: PartitionFetch, cold_end: int = 0, log_start: int | None = None) -> FetchedPartition:
        """Replies as the leader."""
        low = self.start if log_start is None else log_start
        leader_log = LeaderLog(self.leader_epoch, low, self.start, self.end, self.epochs)
        verdict = validate_offset_and_epoch(request, leader_log)
        records = request.offset.to_bytes(8, "big") if verdict is Code.NONE and request.offset < self.end else b""
        return FetchedPartition(
            TOPIC_ID,
            0,
            verdict.number if isinstance(verdict, Code) else 0,
            self.high_watermark,
            low,
            self.start,
            cold_end,
            verdict if isinstance(verdict, DivergingEpoch) else None,
            records,
        )

    def fetch_from(self, leader: ModelReplica) -> FollowerStep:
        """Sends one fetch and carries out the reply."""
        request = self.build_fetch()
        part = leader.reply(request)
        found = decide_step(request, part, FollowerLog(self.start, self.end, self.epochs))
        if isinstance(found, Append):
            for epoch, value in leader.records[request.offset - leader.start :]:
                self.append(epoch, value)
        elif isinstance(found, Truncate):
            self._truncate(found.offset)
        elif isinstance(found, RestartAtLogStart):
            self.start, self.records, self.epochs = found.offset, [], LeaderEpochs()
        if part.diverging_epoch is None:
            self.high_watermark = next_high_watermark(self.high_watermark, part.high_watermark, self.end)
        return found

    def _truncate(self, offset: int) -> None:
        del self.records[max(offset - self.start, 0) :]
        self.epochs.truncate_from(offset)
        self.start = min(self.start, offset)
        self.high_watermark = min(self.high_watermark, offset)

    def __str__(self) -> str:
        values = " ".join(f"{each}/{epoch}" for epoch, each in self.records)
        return f"[{self.start},{self.end}) {values} hw={self.high_watermark}"


class ReplicaTranscript:
    """Runs the steps of a transcript on model replicas."""

    def __init__(self) -> None:
        self._replicas: dict[str, ModelReplica] = {}

    def say(self, command: Command) -> str:
        name, *rest = command.words
        replica = self._replicas.setdefault(name, ModelReplica())
        match command.verb:
            case "replica":  # NAME record/epoch...: what it has; epoch= is whom it follows
                self._replicas[name] = replica = ModelReplica(high_watermark=command.number("hw", 0))
                replica.leader_epoch = command.number("epoch", 0)
                for each in rest:
                    value, epoch = each.split("/")
                    replica.append(int(epoch), value)
            case "lead":  # NAME EPOCH: everybody knows it
                for every in self._replicas.values():
                    every.leader_epoch = int(rest[0])
                return f"epoch {rest[0]} begins at {replica.end}"
            case "append":  # NAME what: under the epoch that it leads
                replica.append(replica.leader_epoch, rest[0])
            case "commit":  # NAME: all in sync have everything
                replica.high_watermark = replica.end
            case "fetch":  # NAME LEADER
                return self._fetch(replica, self._replicas[rest[0]])
            case "log":
                return str(replica)
            case _:
                raise AssertionError(command)
        return str(replica)

    @staticmethod
    def _fetch(replica: ModelReplica, leader: ModelReplica) -> str:
        request_text = (
            f"asks for {replica.end} after epoch {replica.epochs.latest}"
            if replica.epochs.latest != NO_EPOCH
            else "asks"
        )
        try:
            part = leader.reply(replica.build_fetch())
        except Refused as refused:
            return f"{request_text}: {refused.code.name}"
        found = replica.fetch_from(leader)
        parted = ""
        if part.diverging_epoch is not None:
            parted = f"parted, epoch {part.diverging_epoch.leader_epoch} ends at {part.diverging_epoch.end_offset}: "
        return f"{request_text}: {parted}{found}\n{replica}"
