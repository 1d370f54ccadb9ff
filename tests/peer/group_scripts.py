"""Scripts of group requests that any broker of the Kafka family answers alike. Each uses groups with names of its own.

They hold for a broker with `group.max.size=3` and topics t and u.
"""

from __future__ import annotations

from tests.peer.group_worlds import Script, World
from tests.unit.groups.rig import BOTH, RANGE, subscription
from tiered.groups import requests as r

OTHER = (("roundrobin", subscription("t")), ("range", subscription("t")))
NEWS = (("range", subscription("t", "u")),)


def join(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    protocols: tuple[tuple[str, bytes], ...] = RANGE,
    kind: str = "consumer",
    session_ms: int = 30_000,
    required: bool = True,
    skip_known: bool = True,
) -> r.JoinGroup:
    return r.JoinGroup(
        group, member, instance, "c", "", session_ms, 30_000, kind, protocols, "why", required, skip_known
    )


def sync(
    group: str,
    generation: int,
    member: str,
    instance: str | None = None,
    kind: str = "consumer",
    protocol: str = "range",
    given: tuple[tuple[str, bytes], ...] = (),
) -> r.SyncGroup:
    return r.SyncGroup(group, generation, member, instance, kind, protocol, given)


def ask(world: World, request: r.Request, caller: str = "admin") -> r.Reply:
    world.ask(caller, request)
    return world.receive(caller)


def new(world: World, group: str, caller: str) -> str:
    reply = ask(world, join(group), caller)
    assert isinstance(reply, r.JoinGroupReply)
    return reply.member_id


def pair(world: World, group: str, *, protocols: tuple[tuple[str, bytes], ...] = RANGE) -> tuple[str, str]:
    """Joins two members of generation 1, of which the first leads: nothing is assigned yet."""
    a, b = new(world, group, "a"), new(world, group, "b")
    world.ask("a", join(group, a, protocols=protocols))
    world.ask("b", join(group, b, protocols=protocols))
    world.receive("a")
    world.receive("b")
    return a, b


def assign(world: World, group: str, a: str, b: str, generation: int = 1) -> None:
    world.ask("b", sync(group, generation, b))
    world.ask("a", sync(group, generation, a, given=((a, b"for a"), (b, b"for b"))))
    world.receive("a")
    world.receive("b")


def whole_cycle(world: World) -> None:
    a, b = pair(world, "life")
    ask(world, r.DescribeGroup("life"))
    ask(world, r.Heartbeat("life", 1, a))
    ask(world, r.CommitOffsets("life", (r.PartitionOffset("t", 0, 1),), 1, a))
    assign(world, "life", a, b)
    ask(world, r.DescribeGroup("life"))
    ask(world, r.CommitOffsets("life", (r.PartitionOffset("t", 0, 7, 2, "note"), r.PartitionOffset("u", 1, 8)), 1, b))
    ask(world, r.FetchOffsets("life", None))
    ask(world, r.FetchOffsets("life", (("t", 0), ("t", 1))))
    ask(world, r.DeleteOffsets("life", (("t", 0), ("u", 1), ("u", 0))))
    ask(world, r.DeleteGroup("life"))
    ask(world, r.LeaveGroup("life", (r.LeavingMember(b, None, "done"), r.LeavingMember("stranger"))))
    ask(world, r.Heartbeat("life", 1, a))
    world.ask("a", join("life", a))
    world.receive("a")
    ask(world, r.LeaveGroup("life", (r.LeavingMember(a),)))
    ask(world, r.DescribeGroup("life"))
    ask(world, r.Heartbeat("life", 2, a))
    ask(world, sync("life", 2, a))
    ask(world, r.CommitOffsets("life", (r.PartitionOffset("t", 0, 9),)))
    ask(world, r.DeleteGroup("life"))
    ask(world, r.DescribeGroup("life"))
    ask(world, r.FetchOffsets("life", (("t", 0),)))


def refusals(world: World) -> None:
    for group in ("", "refusals"):
        ask(world, r.Heartbeat(group, 1, "m"))
        ask(world, sync(group, 1, "m"))
        ask(world, r.LeaveGroup(group, (r.LeavingMember("m"), r.LeavingMember("", "i"))))
        ask(world, join(group, "m"))
        ask(world, r.DescribeGroup(group))
        ask(world, r.DeleteGroup(group))
    ask(world, r.CommitOffsets("refusals", (r.PartitionOffset("t", 0, 1),), 1, "m"))
    ask(world, r.DeleteOffsets("refusals", (("t", 0),)))
    ask(world, join("refusals", session_ms=5_999))
    ask(world, join("refusals", session_ms=1_800_001))
    ask(world, join("refusals", kind=""))
    ask(world, join("refusals", protocols=()))
    a, b = pair(world, "refusals")
    for kind, name in (("connect", "range"), ("consumer", "roundrobin")):
        ask(world, sync("refusals", 1, b, kind=kind, protocol=name))
    assign(world, "refusals", a, b)
    for generation in (-1, 0, 2):
        ask(world, r.Heartbeat("refusals", generation, a))
        ask(world, sync("refusals", generation, a))
        ask(world, r.CommitOffsets("refusals", (r.PartitionOffset("t", 0, 1),), generation, a))
    for member, instance in (("stranger", None), (a, "i"), ("", None)):
        ask(world, r.Heartbeat("refusals", 1, member, instance))
        ask(world, sync("refusals", 1, member, instance))
        ask(world, r.CommitOffsets("refusals", (r.PartitionOffset("t", 0, 1),), 1, member, instance))
        ask(world, r.LeaveGroup("refusals", (r.LeavingMember(member, instance),)))
    ask(world, r.CommitOffsets("refusals", (r.PartitionOffset("t", 0, 1),)))
    ask(world, join("refusals", kind="connect"))
    ask(world, join("refusals", protocols=(("sticky", b""),)))
    ask(world, join("refusals", "stranger"))


def rejoins(world: World) -> None:
    a, b = pair(world, "rejoins")
    ask(world, join("rejoins", a), "a")
    ask(world, join("rejoins", b), "b")
    assign(world, "rejoins", a, b)
    ask(world, join("rejoins", b), "b")
    ask(world, sync("rejoins", 1, b), "b")
    world.ask("b", join("rejoins", b, protocols=NEWS))
    ask(world, r.Heartbeat("rejoins", 1, a))
    ask(world, sync("rejoins", 1, a), "a")
    ask(world, r.CommitOffsets("rejoins", (r.PartitionOffset("t", 0, 4),), 1, a))
    world.ask("a", join("rejoins", a))
    world.receive("a")
    world.receive("b")
    world.ask("b", sync("rejoins", 2, b))
    world.ask("a", join("rejoins", a, protocols=NEWS))
    world.receive("b")
    ask(world, r.DescribeGroup("rejoins"))
    world.ask("b", join("rejoins", b, protocols=NEWS))
    world.receive("a")
    world.receive("b")
    assign(world, "rejoins", a, b, 3)
    world.ask("a", join("rejoins", a, protocols=NEWS))
    ask(world, r.Heartbeat("rejoins", 3, b))
    ask(world, r.LeaveGroup("rejoins", (r.LeavingMember(b),)))
    world.receive("a")


def leader_leaves(world: World) -> None:
    a, b = pair(world, "leader-leaves")
    world.ask("b", sync("leader-leaves", 1, b))
    ask(world, r.LeaveGroup("leader-leaves", (r.LeavingMember(a),)))
    world.receive("b")
    ask(world, join("leader-leaves", b), "b")
    ask(world, sync("leader-leaves", 2, b, given=((b, b"all"),)), "b")
    ask(world, r.DescribeGroup("leader-leaves"))


def static_members(world: World) -> None:
    group = "static"
    world.ask("a", join(group, instance="a", protocols=BOTH))
    world.ask("b", join(group, instance="b", protocols=BOTH))
    ids = [reply.member_id for reply in (world.receive("a"), world.receive("b")) if isinstance(reply, r.JoinGroupReply)]
    a, b = ids
    world.ask("b", sync(group, 1, b, "b"))
    world.ask("a", sync(group, 1, a, "a", given=((a, b"for a"), (b, b"for b"))))
    world.receive("a")
    world.receive("b")
    again = ask(world, join(group, instance="b", protocols=BOTH), "b")
    assert isinstance(again, r.JoinGroupReply)
    ask(world, sync(group, 1, again.member_id, "b"), "b")
    for member in (b, again.member_id):
        ask(world, r.Heartbeat(group, 1, member, "b"))
        ask(world, r.CommitOffsets(group, (r.PartitionOffset("t", 0, 1),), 1, member, "b"))
        ask(world, sync(group, 1, member, "b"))
    ask(world, join(group, b, instance="b", protocols=BOTH), "b")
    ask(world, join(group, instance="b", protocols=NEWS), "b")
    ask(world, join(group, instance="a", protocols=BOTH), "a")
    ask(world, join(group, instance="a", protocols=BOTH, skip_known=False), "a")
    ask(world, r.DescribeGroup(group))
    ask(
        world,
        r.LeaveGroup(group, (r.LeavingMember("", "b"), r.LeavingMember("", "z"), r.LeavingMember("stranger", "a"))),
    )
    ask(world, r.DescribeGroup(group))
    world.ask("a", join(group, instance="a", protocols=BOTH))
    world.receive("a")
    world.ask("b", join(group, instance="b", protocols=BOTH))
    world.ask("c", join(group, instance="b", protocols=BOTH))
    world.receive("b")
    world.ask("a", join(group, instance="a", protocols=BOTH))
    world.receive("a")
    world.receive("c")


def offsets_of_nobody(world: World) -> None:
    ask(
        world,
        r.CommitOffsets(
            "simple", (r.PartitionOffset("t", 0, 5), r.PartitionOffset("t", 1, -1), r.PartitionOffset("t", 2, 2**62))
        ),
    )
    ask(world, r.CommitOffsets("simple", (r.PartitionOffset("t", 3, 1, metadata="x" * 4_096),)))
    ask(
        world,
        r.CommitOffsets("simple", (r.PartitionOffset("t", 4, 1, metadata="x" * 4_097), r.PartitionOffset("t", 5, 1))),
    )
    ask(world, r.CommitOffsets("simple", (r.PartitionOffset("u", 0, 1),), retention_ms=3_600_000))
    ask(world, r.FetchOffsets("simple", None, "m", 3))
    ask(world, r.FetchOffsets("simple", (("t", 0), ("t", 9), ("v", 0))))
    ask(world, r.DescribeGroup("simple"))
    ask(world, r.DeleteOffsets("simple", (("t", 0), ("t", 7))))
    ask(world, r.FetchOffsets("simple", None))
    ask(world, r.DeleteGroup("simple"))
    ask(world, r.FetchOffsets("simple", None))


def another_kind(world: World) -> None:
    group = "connect"
    a = new(world, group, "a")
    ask(world, join(group, a, kind="connect", protocols=(("sessioned", b"\xff"),)), "a")
    ask(world, sync(group, 1, a, kind="connect", protocol="sessioned", given=((a, b"work"),)), "a")
    ask(world, r.DescribeGroup(group))
    ask(world, r.CommitOffsets(group, (r.PartitionOffset("t", 0, 1),), 1, a))
    ask(world, r.DeleteOffsets(group, (("t", 0),)))


def votes(world: World) -> None:
    ids = [new(world, "votes", caller) for caller in "abc"]
    for caller, member, protocols in zip("abc", ids, (BOTH, OTHER, OTHER), strict=True):
        world.ask(caller, join("votes", member, protocols=protocols))
    for caller in "abc":
        world.receive(caller)
    ask(world, r.ListGroups(frozenset({"CompletingRebalance"})))
    ask(world, join("votes", protocols=BOTH), "d")
    ask(world, sync("votes", 1, ids[0], protocol="roundrobin"), "a")
    ask(world, r.DescribeGroup("votes"))


def older_clients(world: World) -> None:
    ask(world, join("older", "stranger", required=False))
    world.ask("a", join("older", required=False))
    ask(world, r.DescribeGroup("older"))
    world.receive("a")
    ask(world, r.ListGroups(frozenset({"completingrebalance"}), frozenset({"classic"})))
    ask(world, r.ListGroups(frozenset(), frozenset({"consumer"})))


SCRIPTS: dict[str, Script] = {
    script.__name__: script
    for script in (
        whole_cycle,
        refusals,
        rejoins,
        leader_leaves,
        static_members,
        offsets_of_nobody,
        another_kind,
        votes,
        older_clients,
    )
}
