"""What goes wrong, and how it ends. Which brokers are hit depends on their roles when it begins."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.trio import FOURTH, MOVE_SECONDS, NODES, Trio
from tests.chaos.views import View
from tests.chaos.wires import BUCKET, CLIENT, Link
from tests.fakes3 import HttpFault
from tiered.object_store.faulty import FaultKind

WRITES = ("PUT", "POST")
WHOLE_SECONDS = 60.0
GONE_SECONDS = 15.0
"""Until every partition is acknowledged again while a process is gone that is missed at once."""
SILENT_SECONDS = 20.0
"""The same for one that is only silent: a session, and clients that find out."""
AGAIN_SECONDS = 30.0
"""From the end of a fault until everything is live again."""


@dataclass
class Scene:
    """A fault in a run: the brokers as they stood when it began, and whom it hit."""

    trio: Trio
    view: View
    pause: Callable[[float], None]
    """Lets a fault last; it watches that nobody ends by itself."""
    hit: tuple[int, ...] = ()

    def leader(self, *, controller: bool | None = None) -> int:
        """Who leads most; of those that are, or are not, the controller, when it is said."""
        chosen = [node for node in NODES if controller is None or controller is (node == self.view.controller)]
        return max(chosen, key=lambda node: len(self.view.led_by(node)))

    def follower(self) -> int:
        """Who leads least and does not control."""
        chosen = [node for node in NODES if node != self.view.controller]
        return min(chosen, key=lambda node: len(self.view.led_by(node)))


@dataclass(frozen=True)
class Fault:
    """`begin` says in words what it did. Where `goes_on`, every partition is acknowledged again, within `acks_within`
    seconds of its begin, before it is mended."""

    name: str
    begin: Callable[[Scene], None]
    mend: Callable[[Scene], None]
    goes_on: bool = True
    lasts: float = 0.0
    """Seconds from begin to mend at least."""
    acks_within: float = SILENT_SECONDS
    deadline: float = AGAIN_SECONDS
    """Seconds from mend until everything is live again."""
    balanced: bool = True
    """Each broker leads its share before."""
    needs_s3: bool = False


def _killed(who: Callable[[Scene], tuple[int, ...]]) -> Callable[[Scene], None]:
    def begin(scene: Scene) -> None:
        scene.hit = who(scene)
        scene.trio.kill(*scene.hit)

    return begin


def _frozen(who: Callable[[Scene], tuple[int, ...]]) -> Callable[[Scene], None]:
    def begin(scene: Scene) -> None:
        scene.hit = who(scene)
        for node in scene.hit:
            scene.trio.brokers[node].freeze()

    return begin


def _cut(who: Callable[[Scene], tuple[int, ...]], links: Callable[[int], list[Link]]) -> Callable[[Scene], None]:
    def begin(scene: Scene) -> None:
        scene.hit = who(scene)
        scene.trio.wires.cut(link for node in scene.hit for link in links(node))

    return begin


def _started(scene: Scene) -> None:
    scene.trio.start(*scene.hit)


def _thawed(scene: Scene) -> None:
    for node in scene.hit:
        scene.trio.brokers[node].thaw()


def _joined(scene: Scene) -> None:
    scene.trio.wires.mend()


def _wiped(scene: Scene) -> None:
    for node in scene.hit:
        scene.trio.brokers[node].wipe()
    scene.trio.start(*scene.hit)


def _reset(scene: Scene) -> None:
    scene.hit = NODES
    for _ in range(5):
        scene.trio.wires.reset(NODES)
        scene.pause(0.5)


def _rolled(scene: Scene) -> None:
    """SIGTERM, start, and the next one when everything is whole."""
    scene.hit = NODES
    trio = scene.trio
    for node in sorted(NODES, key=lambda each: each == scene.view.controller):
        code = trio.brokers[node].end(signal.SIGTERM)
        assert code == 0, f"broker {node} ended with {code}: {trio.brokers[node].said()}"
        trio.start(node)
        trio.until(trio.whole, WHOLE_SECONDS, trio.views)


def _fourth_comes(scene: Scene) -> None:
    """A broker joins and is given its share of what is there."""
    trio = scene.trio
    trio.join()
    trio.until(lambda: _there(trio, *NODES, FOURTH), WHOLE_SECONDS, trio.views)
    trio.command("cluster", "rebalance", "--execute")
    trio.until(lambda: trio.settled(*NODES, FOURTH), MOVE_SECONDS, trio.views)


def _fourth_goes(scene: Scene) -> None:
    """Everything moves off it before it stops."""
    trio = scene.trio
    trio.command("cluster", "decommission", str(FOURTH))
    trio.uncordon(FOURTH)
    trio.part(FOURTH)


def _replaced_by_fourth(scene: Scene) -> None:
    """A leader is decommissioned and stops for good; another broker takes what it had."""
    scene.hit = leader(scene)
    trio, [hit] = scene.trio, scene.hit
    trio.join()
    trio.until(lambda: _there(trio, *NODES, FOURTH), WHOLE_SECONDS, trio.views)
    trio.command("cluster", "decommission", str(hit))
    trio.part(hit)
    trio.until(lambda: trio.settled(*sorted({*NODES, FOURTH} - {hit})), MOVE_SECONDS, trio.views)


def _back_for_fourth(scene: Scene) -> None:
    """It comes back with an empty disk, and the other one leaves."""
    trio, [hit] = scene.trio, scene.hit
    trio.start(hit)
    trio.until(lambda: _there(trio, *NODES, FOURTH), WHOLE_SECONDS, trio.views)
    trio.uncordon(hit)
    _fourth_goes(scene)


def _moved_off(scene: Scene) -> None:
    """What a broker leads moves to the others, all at once, and its copies go."""
    scene.hit = leader(scene)
    _reassigned(scene, lambda place, hit: tuple(node for node in scene.view.replicas[place] if node != hit))


def _moved_back(scene: Scene) -> None:
    """It copies everything anew, and is to lead it again."""
    _reassigned(scene, lambda place, hit: (hit, *(node for node in scene.view.replicas[place] if node != hit)))


def _reassigned(scene: Scene, to: Callable[[tuple[str, int], int], tuple[int, ...]]) -> None:
    [hit] = scene.hit
    moves = [f"{place[0]}/{place[1]}={','.join(map(str, to(place, hit)))}" for place in scene.view.led_by(hit)]
    scene.trio.command("cluster", "reassign", *moves)


def _there(trio: Trio, *nodes: int) -> bool:
    view = trio.view()
    return view is not None and view.brokers == nodes


def _bucket(*rules: Callable[[], HttpFault]) -> Callable[[Scene], None]:
    def begin(scene: Scene) -> None:
        assert scene.trio.s3 is not None
        scene.trio.s3.faults[:] = [make() for make in rules]

    return begin


def _both(*acts: Callable[[Scene], None]) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        for each in acts:
            each(scene)

    return act


def _bucket_back(scene: Scene) -> None:
    assert scene.trio.s3 is not None
    scene.trio.s3.faults.clear()


def _nothing(scene: Scene) -> None:
    """Over by itself."""


def leader(scene: Scene) -> tuple[int, ...]:
    return (scene.leader(controller=False),)


def controller(scene: Scene) -> tuple[int, ...]:
    return (scene.view.controller,)


def follower(scene: Scene) -> tuple[int, ...]:
    return (scene.follower(),)


def everybody(scene: Scene) -> tuple[int, ...]:
    return NODES


def two(scene: Scene) -> tuple[int, ...]:
    return tuple(sorted({scene.view.controller, scene.leader(controller=False)}))


def from_brokers(node: int) -> list[Link]:
    """Both ways; clients still reach it."""
    return [link for other in NODES if other != node for link in ((node, other), (other, node))]


def from_all(node: int) -> list[Link]:
    """Both ways, clients too, the bucket not."""
    return [*from_brokers(node), (node, CLIENT), (CLIENT, node)]


def from_answers(node: int) -> list[Link]:
    """What it sends to other brokers does not arrive; it hears them."""
    return [(node, other) for other in NODES if other != node]


def from_bucket(node: int) -> list[Link]:
    return [(node, BUCKET), (BUCKET, node)]


def away() -> HttpFault:
    return HttpFault(FaultKind.ERROR)


def lost() -> HttpFault:
    return HttpFault(FaultKind.LOST_REPLY, verbs=WRITES, probability=0.4)


def late() -> HttpFault:
    return HttpFault(FaultKind.LATE_APPLY, verbs=WRITES, probability=0.3, seconds=2.0)


def slow() -> HttpFault:
    return HttpFault(FaultKind.DELAY, seconds=0.7)


ON_ANY_STORE = (
    Fault("kill -9 of a leader", _killed(leader), _started, acks_within=GONE_SECONDS),
    Fault("kill -9 of the controller", _killed(controller), _started, acks_within=GONE_SECONDS),
    Fault("kill -9 of a follower", _killed(follower), _started, acks_within=GONE_SECONDS, balanced=False),
    Fault("kill -9 of two", _killed(two), _started, goes_on=False, lasts=3),
    Fault("kill -9 of all", _killed(everybody), _started, goes_on=False),
    Fault("SIGSTOP of a leader", _frozen(leader), _thawed),
    Fault("SIGSTOP of the controller", _frozen(controller), _thawed),
    Fault("SIGSTOP of a follower", _frozen(follower), _thawed, balanced=False),
    Fault("SIGSTOP of all", _frozen(everybody), _thawed, goes_on=False, lasts=8),
    Fault("a leader cut from brokers", _cut(leader, from_brokers), _joined),
    Fault("the controller cut from brokers", _cut(controller, from_brokers), _joined),
    Fault("a leader cut from brokers and clients", _cut(leader, from_all), _joined),
    Fault("what a leader sends to brokers is lost", _cut(leader, from_answers), _joined),
    Fault("connections reset, five times", _reset, _nothing),
    Fault("kill -9 of a leader, its disk wiped", _killed(leader), _wiped, acks_within=GONE_SECONDS),
    Fault("rolling restart", _rolled, _nothing),
    Fault("what a leader leads moved off it, and back", _moved_off, _moved_back),
    Fault("a broker added and rebalanced, then decommissioned", _fourth_comes, _fourth_goes, deadline=MOVE_SECONDS),
    Fault("a leader decommissioned, and its successor", _replaced_by_fourth, _back_for_fourth, deadline=MOVE_SECONDS),
)
ON_S3 = (
    Fault("bucket away", _bucket(away), _bucket_back, lasts=10, needs_s3=True),
    Fault("bucket away, kill -9 of a leader", _both(_bucket(away), _killed(leader)),
          _both(_bucket_back, _started), goes_on=False, lasts=4, needs_s3=True),
    Fault("bucket away, kill -9 of all", _both(_bucket(away), _killed(everybody), _started), _bucket_back,
          goes_on=False, lasts=4, needs_s3=True),
    Fault("replies of the bucket lost, kill -9 of the controller", _both(_bucket(lost), _killed(controller)),
          _both(_started, _bucket_back), lasts=3, needs_s3=True),
    Fault("writes land late, kill -9 of the controller", _both(_bucket(late), _killed(controller)),
          _both(_started, _bucket_back), lasts=3, needs_s3=True),
    Fault("bucket slow, kill -9 of a leader", _both(_bucket(slow), _killed(leader)),
          _both(_started, _bucket_back), needs_s3=True),
    Fault("a follower cut from the bucket", _cut(follower, from_bucket), _joined, lasts=12, needs_s3=True),
    Fault("a leader cut from the bucket", _cut(leader, from_bucket), _joined, lasts=12, needs_s3=True),
    Fault("the controller cut from the bucket, kill -9 of a leader",
          _both(_cut(controller, from_bucket), _killed(leader)), _both(_joined, _started), goes_on=False, lasts=12,
          needs_s3=True),
)  # fmt: skip
EVERY = (*ON_ANY_STORE, *ON_S3)
SHORT = {
    "file": (
        "SIGSTOP of the controller", "kill -9 of all", "the controller cut from brokers",
        "kill -9 of a leader, its disk wiped", "SIGSTOP of a leader", "what a leader leads moved off it, and back",
        "rolling restart",
    ),
    "s3": (
        "bucket away", "replies of the bucket lost, kill -9 of the controller", "bucket away, kill -9 of a leader",
    ),
}  # fmt: skip


def named(names: tuple[str, ...]) -> list[Fault]:
    by_name = {fault.name: fault for fault in EVERY}
    return [by_name[name] for name in names]
