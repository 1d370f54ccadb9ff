"""Scripts of group requests that any broker of the Kafka family answers alike. Each uses groups of its own name.

They hold for a broker with `group.max.size=3` and topics t and u.
"""

from __future__ import annotations

from tests.peer.group_worlds import Story, World
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


def told(world: World, request: r.Request, caller: str = "admin") -> r.Reply:
    world.ask(caller, request)
    return world.hear(caller)


def new(world: World, group: str, caller: str) -> str:
    reply = told(world, join(group), caller)
    assert isinstance(reply, r.JoinGroupReply)
    return reply.member_id


def pair(world: World, group: str, *, protocols: tuple[tuple[str, bytes], ...] = RANGE) -> tuple[str, str]:
    """Two members of generation 1, the first one leads: nothing is assigned yet."""
    a, b = new(world, group, "a"), new(world, group, "b")
    world.ask("a", join(group, a, protocols=protocols))
    world.ask("b", join(group, b, protocols=protocols))
    world.hear("a")
    world.hear("b")
    return a, b


def assign(world: World, group: str, a: str, b: str, generation: int = 1) -> None:
    world.ask("b", sync(group, generation, b))
    world.ask("a", sync(group, generation, a, given=((a, b"for a"), (b, b"for b"))))
    world.hear("a")
    world.hear("b")


def life(world: World) -> None:
    a, b = pair(world, "life")
    told(world, r.DescribeGroup("life"))
    told(world, r.Heartbeat("life", 1, a))
    told(world, r.CommitOffsets("life", (r.PartitionOffset("t", 0, 1),), 1, a))
    assign(world, "life", a, b)
    told(world, r.DescribeGroup("life"))
    told(world, r.CommitOffsets("life", (r.PartitionOffset("t", 0, 7, 2, "note"), r.PartitionOffset("u", 1, 8)), 1, b))
    told(world, r.FetchOffsets("life", None))
    told(world, r.FetchOffsets("life", (("t", 0), ("t", 1))))
    told(world, r.DeleteOffsets("life", (("t", 0), ("u", 1), ("u", 0))))
    told(world, r.DeleteGroup("life"))
    told(world, r.LeaveGroup("life", (r.LeavingMember(b, None, "done"), r.LeavingMember("stranger"))))
    told(world, r.Heartbeat("life", 1, a))
    world.ask("a", join("life", a))
    world.hear("a")
    told(world, r.LeaveGroup("life", (r.LeavingMember(a),)))
    told(world, r.DescribeGroup("life"))
    told(world, r.Heartbeat("life", 2, a))
    told(world, sync("life", 2, a))
    told(world, r.CommitOffsets("life", (r.PartitionOffset("t", 0, 9),)))
    told(world, r.DeleteGroup("life"))
    told(world, r.DescribeGroup("life"))
    told(world, r.FetchOffsets("life", (("t", 0),)))


def refusals(world: World) -> None:
    for group in ("", "refusals"):
        told(world, r.Heartbeat(group, 1, "m"))
        told(world, sync(group, 1, "m"))
        told(world, r.LeaveGroup(group, (r.LeavingMember("m"), r.LeavingMember("", "i"))))
        told(world, join(group, "m"))
        told(world, r.DescribeGroup(group))
        told(world, r.DeleteGroup(group))
    told(world, r.CommitOffsets("refusals", (r.PartitionOffset("t", 0, 1),), 1, "m"))
    told(world, r.DeleteOffsets("refusals", (("t", 0),)))
    told(world, join("refusals", session_ms=5_999))
    told(world, join("refusals", session_ms=1_800_001))
    told(world, join("refusals", kind=""))
    told(world, join("refusals", protocols=()))
    a, b = pair(world, "refusals")
    for kind, name in (("connect", "range"), ("consumer", "roundrobin")):
        told(world, sync("refusals", 1, b, kind=kind, protocol=name))
    assign(world, "refusals", a, b)
    for generation in (-1, 0, 2):
        told(world, r.Heartbeat("refusals", generation, a))
        told(world, sync("refusals", generation, a))
        told(world, r.CommitOffsets("refusals", (r.PartitionOffset("t", 0, 1),), generation, a))
    for member, instance in (("stranger", None), (a, "i"), ("", None)):
        told(world, r.Heartbeat("refusals", 1, member, instance))
        told(world, sync("refusals", 1, member, instance))
        told(world, r.CommitOffsets("refusals", (r.PartitionOffset("t", 0, 1),), 1, member, instance))
        told(world, r.LeaveGroup("refusals", (r.LeavingMember(member, instance),)))
    told(world, r.CommitOffsets("refusals", (r.PartitionOffset("t", 0, 1),)))
    told(world, join("refusals", kind="connect"))
    told(world, join("refusals", protocols=(("sticky", b""),)))
    told(world, join("refusals", "stranger"))


def rejoins(world: World) -> None:
    a, b = pair(world, "rejoins")
    told(world, join("rejoins", a), "a")
    told(world, join("rejoins", b), "b")
    assign(world, "rejoins", a, b)
    told(world, join("rejoins", b), "b")
    told(world, sync("rejoins", 1, b), "b")
    world.ask("b", join("rejoins", b, protocols=NEWS))
    told(world, r.Heartbeat("rejoins", 1, a))
    told(world, sync("rejoins", 1, a), "a")
    told(world, r.CommitOffsets("rejoins", (r.PartitionOffset("t", 0, 4),), 1, a))
    world.ask("a", join("rejoins", a))
    world.hear("a")
    world.hear("b")
    world.ask("b", sync("rejoins", 2, b))
    world.ask("a", join("rejoins", a, protocols=NEWS))
    world.hear("b")
    told(world, r.DescribeGroup("rejoins"))
    world.ask("b", join("rejoins", b, protocols=NEWS))
    world.hear("a")
    world.hear("b")
    assign(world, "rejoins", a, b, 3)
    world.ask("a", join("rejoins", a, protocols=NEWS))
    told(world, r.Heartbeat("rejoins", 3, b))
    told(world, r.LeaveGroup("rejoins", (r.LeavingMember(b),)))
    world.hear("a")


def leader_leaves(world: World) -> None:
    a, b = pair(world, "leader-leaves")
    world.ask("b", sync("leader-leaves", 1, b))
    told(world, r.LeaveGroup("leader-leaves", (r.LeavingMember(a),)))
    world.hear("b")
    told(world, join("leader-leaves", b), "b")
    told(world, sync("leader-leaves", 2, b, given=((b, b"all"),)), "b")
    told(world, r.DescribeGroup("leader-leaves"))


def static_members(world: World) -> None:
    group = "static"
    world.ask("a", join(group, instance="a", protocols=BOTH))
    world.ask("b", join(group, instance="b", protocols=BOTH))
    ids = [reply.member_id for reply in (world.hear("a"), world.hear("b")) if isinstance(reply, r.JoinGroupReply)]
    a, b = ids
    world.ask("b", sync(group, 1, b, "b"))
    world.ask("a", sync(group, 1, a, "a", given=((a, b"for a"), (b, b"for b"))))
    world.hear("a")
    world.hear("b")
    again = told(world, join(group, instance="b", protocols=BOTH), "b")
    assert isinstance(again, r.JoinGroupReply)
    told(world, sync(group, 1, again.member_id, "b"), "b")
    for member in (b, again.member_id):
        told(world, r.Heartbeat(group, 1, member, "b"))
        told(world, r.CommitOffsets(group, (r.PartitionOffset("t", 0, 1),), 1, member, "b"))
        told(world, sync(group, 1, member, "b"))
    told(world, join(group, b, instance="b", protocols=BOTH), "b")
    told(world, join(group, instance="b", protocols=NEWS), "b")
    told(world, join(group, instance="a", protocols=BOTH), "a")
    told(world, join(group, instance="a", protocols=BOTH, skip_known=False), "a")
    told(world, r.DescribeGroup(group))
    told(
        world,
        r.LeaveGroup(group, (r.LeavingMember("", "b"), r.LeavingMember("", "z"), r.LeavingMember("stranger", "a"))),
    )
    told(world, r.DescribeGroup(group))
    world.ask("a", join(group, instance="a", protocols=BOTH))
    world.hear("a")
    world.ask("b", join(group, instance="b", protocols=BOTH))
    world.ask("c", join(group, instance="b", protocols=BOTH))
    world.hear("b")
    world.ask("a", join(group, instance="a", protocols=BOTH))
    world.hear("a")
    world.hear("c")


def offsets_of_nobody(world: World) -> None:
    told(
        world,
        r.CommitOffsets(
            "simple", (r.PartitionOffset("t", 0, 5), r.PartitionOffset("t", 1, -1), r.PartitionOffset("t", 2, 2**62))
        ),
    )
    told(world, r.CommitOffsets("simple", (r.PartitionOffset("t", 3, 1, metadata="x" * 4_096),)))
    told(
        world,
        r.CommitOffsets("simple", (r.PartitionOffset("t", 4, 1, metadata="x" * 4_097), r.PartitionOffset("t", 5, 1))),
    )
    told(world, r.CommitOffsets("simple", (r.PartitionOffset("u", 0, 1),), retention_ms=3_600_000))
    told(world, r.FetchOffsets("simple", None, "m", 3))
    told(world, r.FetchOffsets("simple", (("t", 0), ("t", 9), ("v", 0))))
    told(world, r.DescribeGroup("simple"))
    told(world, r.DeleteOffsets("simple", (("t", 0), ("t", 7))))
    told(world, r.FetchOffsets("simple", None))
    told(world, r.DeleteGroup("simple"))
    told(world, r.FetchOffsets("simple", None))


def another_kind(world: World) -> None:
    group = "connect"
    a = new(world, group, "a")
    told(world, join(group, a, kind="connect", protocols=(("sessioned", b"\xff"),)), "a")
    told(world, sync(group, 1, a, kind="connect", protocol="sessioned", given=((a, b"work"),)), "a")
    told(world, r.DescribeGroup(group))
    told(world, r.CommitOffsets(group, (r.PartitionOffset("t", 0, 1),), 1, a))
    told(world, r.DeleteOffsets(group, (("t", 0),)))


def votes(world: World) -> None:
    ids = [new(world, "votes", caller) for caller in "abc"]
    for caller, member, protocols in zip("abc", ids, (BOTH, OTHER, OTHER), strict=True):
        world.ask(caller, join("votes", member, protocols=protocols))
    for caller in "abc":
        world.hear(caller)
    told(world, r.ListGroups(frozenset({"CompletingRebalance"})))
    told(world, join("votes", protocols=BOTH), "d")
    told(world, sync("votes", 1, ids[0], protocol="roundrobin"), "a")
    told(world, r.DescribeGroup("votes"))


def older_clients(world: World) -> None:
    told(world, join("older", "stranger", required=False))
    world.ask("a", join("older", required=False))
    told(world, r.DescribeGroup("older"))
    world.hear("a")
    told(world, r.ListGroups(frozenset({"completingrebalance"}), frozenset({"classic"})))
    told(world, r.ListGroups(frozenset(), frozenset({"consumer"})))


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        life,
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
