"""Runs transcripts of transactions: producers have names, and each command prints the reply, what is written to the log
of the coordinator, and the markers that are due.

init NAME [id=T] [fresh]         InitProducerId; `fresh`: the process was started anew, and knows no epoch
add NAME a-0 b-1                 these partitions belong to the transaction from now on
commit NAME, abort NAME          EndTxn
written [a-0]                    the leaders wrote the markers that are due, in this partition or in all
describe [id=T], move            the state of an id; another broker coordinates
tick MS                          time passes
"""

from __future__ import annotations

from tests.transcript import Command
from tests.unit.transactions.rig import ShardRig, T
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.transactions.limits import TransactionSettings
from tiered.transactions.metadata import TransactionMetadata
from tiered.transactions.records import read_key, read_value
from tiered.transactions.requests import MarkersDue, MarkersWritten, ProducerIdReply


class TransactionNarrator:
    """One coordinator, and the producers that call it."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self._rig = ShardRig(settings)
        self._producers: dict[str, ProducerIdReply] = {}
        self._ids: dict[str, str] = {}
        self._due: list[MarkersDue] = []
        self._logged = 0

    def say(self, command: Command) -> str:
        lines = getattr(self, f"_{command.verb}")(command)
        return "\n".join([*lines, *self._written_records(), *self._markers_due()])

    # -- commands -----------------------------------------------------------------------------------------------------

    def _init(self, command: Command) -> list[str]:
        name, *flags = command.words
        self._ids[name] = command.named.get("id", T)
        known = self._producers.get(name) if "fresh" not in flags else None
        present = (known.producer_id, known.producer_epoch) if known is not None else ()
        timeout_ms = command.number("timeout", 60_000)
        return self._take(name, self._rig.init(*present, name=self._ids[name], timeout_ms=timeout_ms))

    def _add(self, command: Command) -> list[str]:
        name, *places = command.words
        return [self._rig.add(self._producers[name], *map(_partition, places), name=self._ids[name]).name]

    def _commit(self, command: Command) -> list[str]:
        return self._end(command, True)

    def _abort(self, command: Command) -> list[str]:
        return self._end(command, False)

    def _end(self, command: Command, commit: bool) -> list[str]:
        (name,) = command.words
        return self._take(name, self._rig.end(self._producers[name], commit, name=self._ids[name]))

    def _written(self, command: Command) -> list[str]:
        places, due = frozenset(map(_partition, command.words)), self._due
        self._due = []
        for each in due:
            wanted = (places & each.partitions) or each.partitions
            self._rig.send(MarkersWritten(each.transactional_id, each.producer_id, each.producer_epoch, wanted))
            if left := each.partitions - wanted:
                self._due.append(each._replace(partitions=left))
        return []

    def _describe(self, command: Command) -> list[str]:
        return [_state(self._rig.found(command.named.get("id", T)))]

    def _tick(self, command: Command) -> list[str]:
        self._rig.pass_time(int(command.words[0]))
        return []

    def _move(self, _: Command) -> list[str]:
        self._due = []
        self._rig.take_events()
        self._rig.reload()
        return []

    # -- what comes of them -------------------------------------------------------------------------------------------

    def _take(self, name: str, reply: ProducerIdReply) -> list[str]:
        if reply.code is not Code.NONE:
            return [f"{name}: {reply.code.name}"]
        self._producers[name] = reply
        return [f"{name}: producer={reply.producer_id} epoch={reply.producer_epoch}"]

    def _written_records(self) -> list[str]:
        rows = self._rig.log[self._logged :]
        self._logged = len(self._rig.log)
        return [f"log: {read_key(row.key)} {_state(read_value(row.value)) if row.value else 'gone'}" for row in rows]

    def _markers_due(self) -> list[str]:
        events = self._rig.take_events()
        due = [each for each in events if isinstance(each, MarkersDue)]
        self._due += due
        lines = [f"event: {type(each).__name__}" for each in events if not isinstance(each, MarkersDue)]
        for each in due:
            outcome = "commit" if each.commit else "abort"
            places = ",".join(sorted(map(str, each.partitions)))
            lines.append(f"due: {outcome} of producer={each.producer_id} epoch={each.producer_epoch} in {places}")
        return lines


def _partition(word: str) -> TopicPartition:
    topic, _, number = word.rpartition("-")
    return TopicPartition(topic, int(number))


def _state(metadata: TransactionMetadata) -> str:
    places = ",".join(sorted(map(str, metadata.partitions)))
    return f"{metadata.state.name} producer={metadata.producer_id} epoch={metadata.producer_epoch} {places}".rstrip()
