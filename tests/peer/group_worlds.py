"""One script of group requests, run on a shard in memory and on a broker over its wire, so that the replies can be
compared.

Member ids are random, so that each backend names them M1, M2 ... in the order of their appearance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from tests.peer.group_wire import from_wire, response_of, to_wire
from tests.peer.wire import Wire
from tests.unit.groups.rig import Rig
from tiered.groups import requests as r

HEARING_MS = 20_000


class World(Protocol):
    """A backend of a script: callers send requests and receive replies; others may send in between."""

    def ask(self, caller: str, request: r.Request) -> None: ...
    def receive(self, caller: str) -> r.Reply: ...


Script = Callable[[World], None]


class Names:
    """Member ids by the names of a script."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._groups: set[str] = set()

    def name(self, member_id: str) -> str:
        return self._names.setdefault(member_id, f"M{len(self._names) + 1}") if member_id else ""

    def real(self, name: str) -> str:
        return next((real for real, known in self._names.items() if known == name), name)

    def request(self, request: r.Request) -> r.Request:
        """Returns the request with real ids."""
        if not isinstance(request, r.ListGroups | r.TopicsDeleted | r.LowerOffsets):
            self._groups.add(request.group)
        match request:
            case r.JoinGroup() | r.Heartbeat() | r.CommitOffsets():
                return replace(request, member_id=self.real(request.member_id))
            case r.SyncGroup():
                given = tuple((self.real(name), assigned) for name, assigned in request.assignments)
                return replace(request, member_id=self.real(request.member_id), assignments=given)
            case r.LeaveGroup():
                members = tuple(each._replace(member_id=self.real(each.member_id)) for each in request.members)
                return replace(request, members=members)
            case _:
                return request

    def reply(self, reply: r.Reply) -> r.Reply:
        """Returns the reply with names, without groups of other scripts, and sorted."""
        match reply:
            case r.JoinGroupReply():
                member_id, leader = self.name(reply.member_id), self.name(reply.leader)
                roster = sorted(each._replace(member_id=self.name(each.member_id)) for each in reply.members)
                return replace(reply, member_id=member_id, leader=leader, members=tuple(roster))
            case r.DescribeGroupReply():
                members = sorted(
                    each._replace(member_id=self.name(each.member_id), client_id="", client_host="")
                    for each in reply.members
                )
                return replace(reply, members=tuple(members))
            case r.ListGroupsReply():
                return r.ListGroupsReply(tuple(each for each in reply.groups if each.group in self._groups))
            case r.FetchOffsetsReply():
                return replace(reply, offsets=tuple(sorted(row._replace(topic_id="") for row in reply.offsets)))
            case _:
                return reply


class InMemory:
    """A shard; time passes until the waiting caller has a reply."""

    def __init__(self, rig: Rig, names: Names | None = None) -> None:
        self._rig = rig
        self.names = names or Names()
        self._tokens: dict[str, int] = {}

    def ask(self, caller: str, request: r.Request) -> None:
        self._tokens[caller] = self._rig.ask(self.names.request(request))

    def receive(self, caller: str) -> r.Reply:
        token, rig = self._tokens.pop(caller), self._rig
        while token not in rig.replies:
            due = rig.shard.next_due_ms
            assert due is not None and due < HEARING_MS * 10, f"{caller} waits for ever"
            rig.pass_ms(max(due - rig.ms, 0))
        return self.names.reply(rig.replies[token])


class OverWire:
    """A broker; each caller has a connection."""

    def __init__(self, address: str, names: Names | None = None) -> None:
        self._address = address
        self.names = names or Names()
        self._wires: dict[str, Wire] = {}
        self._asked: dict[str, r.Request] = {}

    def ask(self, caller: str, request: r.Request) -> None:
        wire = self._wires.get(caller)
        if wire is None:
            wire = self._wires[caller] = Wire(self._address, "c")
        self._asked[caller] = request
        message, version = to_wire(self.names.request(request))
        wire.send(message, version)
        # Two requests on two connections reach the broker in no order, unless it had time for the first.
        wire.has_reply(0.03)

    def receive(self, caller: str) -> r.Reply:
        asked = self._asked.pop(caller)
        answer = self._wires[caller].receive(response_of(asked))
        return self.names.reply(from_wire(asked, answer))

    def close(self) -> None:
        for wire in self._wires.values():
            wire.__exit__(None, None, None)


class Recorded:
    """A backend that records all replies, line by line."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: dict[str, r.Request] = {}
        self.lines: list[str] = []

    def ask(self, caller: str, request: r.Request) -> None:
        self._asked[caller] = request
        self._world.ask(caller, request)

    def receive(self, caller: str) -> r.Reply:
        reply = self._world.receive(caller)
        self.lines.append(f"{self._asked[caller]}\n    -> {reply}")
        return reply
