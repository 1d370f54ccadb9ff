"""Runs transcripts of one group: callers have names, and each command prints all replies and records.

join NAME [instance=I] [topics=t,u] [fresh]    with the id it has; `fresh`: the process was started anew
sync NAME [give=NAME:WORDS,...]                the leader assigns
beat NAME, leave NAME..., commit NAME t=5, describe, fetch, delete, move
tick MS, live MS NAME...                       time passes; these send heartbeats meanwhile
"""

from __future__ import annotations

from tests.transcript import Command
from tests.unit.groups.rig import G, Rig, subscription
from tiered.errors import Code
from tiered.groups import requests as r
from tiered.groups.limits import GroupSettings
from tiered.groups.records import GroupKey, OffsetKey, read_group, read_key, read_offset


class Narrator:
    """One group, g. Members send heartbeats only by command."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self._rig = Rig(settings)
        self._ids: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self._instances: dict[str, str] = {}
        self._waiting: dict[int, str] = {}
        self._logged = 0

    def say(self, command: Command) -> str:
        lines = getattr(self, f"_{command.verb}")(command)
        return "\n".join([*lines, *self._received(), *self._written()])

    # -- commands ------------------------------------------------------------------------------------------------------

    def _join(self, command: Command) -> list[str]:
        name, *flags = command.words
        if "instance" in command.named:
            self._instances[name] = command.named["instance"]
        if "fresh" in flags:
            self._ids.pop(name, None)
        metadata = subscription(*command.named.get("topics", "t").split(","))
        token = self._rig.join(
            self._ids.get(name, ""),
            client_id=name,
            instance_id=self._instances.get(name),
            protocols=(("range", metadata),),
            rebalance_ms=command.number("rebalance", 60_000),
        )
        return self._waits(name, token)

    def _sync(self, command: Command) -> list[str]:
        (name,) = command.words
        given = dict(each.split(":") for each in command.named.get("give", "").split(",") if each)
        assignments = tuple((self._ids[to], what.encode()) for to, what in given.items())
        member, instance = self._ids[name], self._instances.get(name)
        request = r.SyncGroup(G, self._generation(command), member, instance, assignments=assignments)
        return self._waits(name, self._rig.ask(request))

    def _beat(self, command: Command) -> list[str]:
        (name,) = command.words
        code = self._rig.beat(self._ids[name], self._generation(command), instance_id=self._instances.get(name))
        return [code.name]

    def _leave(self, command: Command) -> list[str]:
        return [code.name for code in self._rig.leave(*(self._ids[name] for name in command.words))]

    def _commit(self, command: Command) -> list[str]:
        (name,) = command.words or ("",)
        rows = tuple(
            r.PartitionOffset(topic, 0, int(offset)) for topic, offset in command.named.items() if topic in "tu"
        )
        generation = self._generation(command) if name else -1
        request = r.CommitOffsets(G, rows, generation, self._ids.get(name, ""), self._instances.get(name))
        return [code.name for code in self._rig.reply_to(request, r.CommitOffsetsReply).codes]

    def _fetch(self, _: Command) -> list[str]:
        rows = self._rig.reply_to(r.FetchOffsets(G, None), r.FetchOffsetsReply).offsets
        return [f"{row.topic}={row.offset}" for row in rows] or ["nothing"]

    def _describe(self, _: Command) -> list[str]:
        reply = self._rig.describe()
        members = [f"{self._name(member.member_id)}:{member.assignment.decode()}" for member in reply.members]
        return [f"{reply.state} {' '.join(members)}".rstrip()]

    def _delete(self, _: Command) -> list[str]:
        return [self._rig.reply_to(r.DeleteGroup(G), r.DeleteReply).code.name]

    def _tick(self, command: Command) -> list[str]:
        self._rig.pass_ms(int(command.words[0]))
        return []

    def _live(self, command: Command) -> list[str]:
        """Passes time while these members send a heartbeat every three seconds; returns their last replies."""
        ms, *names = command.words
        replies: list[str] = []
        for _ in range(int(ms) // 3_000):
            self._rig.pass_ms(3_000)
            replies = [f"{name}: {self._beat(Command('beat', (name,), {}))[0]}" for name in names]
        return replies

    def _move(self, _: Command) -> list[str]:
        lost = [self._waiting[token] for token in self._waiting]
        self._rig.reload()
        self._waiting.clear()
        return [f"{name} hears nothing" for name in lost]

    # -- what comes of them --------------------------------------------------------------------------------------------

    def _generation(self, command: Command) -> int:
        return command.number("generation", self._generations.get(command.words[0], -1))

    def _name(self, member_id: str) -> str:
        return next((name for name, known in self._ids.items() if known == member_id), f"({member_id})")

    def _waits(self, name: str, token: int) -> list[str]:
        self._waiting[token] = name
        return [] if token in self._rig.replies else [f"{name} waits"]

    def _received(self) -> list[str]:
        answers = [(self._waiting.pop(token), self._rig.replies[token]) for token in self._answered()]
        for name, reply in answers:
            if isinstance(reply, r.JoinGroupReply) and reply.code in (Code.NONE, Code.MEMBER_ID_REQUIRED):
                self._ids[name] = reply.member_id
                self._generations[name] = reply.generation
        return [f"{name}: {self._words_of(reply)}" for name, reply in answers]

    def _answered(self) -> list[int]:
        return [token for token in self._waiting if token in self._rig.replies]

    def _words_of(self, reply: r.Reply) -> str:
        if isinstance(reply, r.JoinGroupReply):
            if reply.code is not Code.NONE:
                return reply.code.name
            roster = ",".join(self._name(member.member_id) for member in reply.members)
            skip = " skip-assignment" if reply.skip_assignment else ""
            members = f" members={roster}" if roster else ""
            return f"joined generation={reply.generation} leader={self._name(reply.leader)}{members}{skip}"
        assert isinstance(reply, r.SyncGroupReply)
        return reply.code.name if reply.code is not Code.NONE else f"assigned {reply.assignment.decode() or 'nothing'}"

    def _written(self) -> list[str]:
        lines = []
        for key, value, _ in self._rig.log[self._logged :]:
            match read_key(key):
                case OffsetKey(_, topic, _):
                    lines.append(f"log: {topic}={read_offset(value).offset}" if value else f"log: {topic} gone")
                case GroupKey():
                    lines.append(f"log: {self._group(value)}")
        self._logged = len(self._rig.log)
        return lines

    def _group(self, value: bytes | None) -> str:
        if value is None:
            return "group gone"
        group = read_group(value)
        members = ",".join(self._name(member.member_id) for member in group.members)
        return f"group generation={group.generation} members={members or 'none'}"
