"""The faults of a run, and their ends. The roles of brokers at the begin decide which ones a fault hits."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.cluster import FOURTH, MOVE_SECONDS, NODES, ChaosBroker, ChaosCluster
from tests.chaos.link_proxy import BUCKET, CLIENT, Link
from tests.chaos.views import ClusterView
from tests.fakes3 import HttpFault
from tiered.ids import PROCESS_STEP
from tiered.object_store.faulty import FaultKind

WRITES = ("PUT", "POST")
IN_SYNC_SECONDS = 240.0
"""Guard against a hang of a broker that starts within a fault."""
DEAD_ACK_SECONDS = 15.0
"""Seconds until every partition is acknowledged again after the death of a process, which is noticed at once."""
SILENT_ACK_SECONDS = 20.0
"""The same for a silent process: a session, and the time of clients to notice."""
RECOVERY_SECONDS = 30.0
"""Seconds from the end of a fault until everything is live again."""


@dataclass
class FaultContext:
    """A fault in a run: the brokers as they were at its begin, and the ones that it hit."""

    trio: ChaosCluster
    view: ClusterView
    pause: Callable[[float], None]
    """Lets a fault last, and checks that no broker ends by itself."""
    targets: tuple[int, ...] = ()

    def leader(self, *, controller: bool | None = None) -> int:
        """Returns the broker that leads most partitions; only the controller, or only others, if that is given."""
        known = self.trio.node_ids
        chosen = [node for node in known if controller is None or controller is (node == self.view.controller)]
        return max(chosen, key=lambda node: len(self.view.partitions_led_by(node)))

    def follower(self) -> int:
        """Returns the broker that leads fewest partitions and is not the controller."""
        chosen = [node for node in NODES if node != self.view.controller]
        return min(chosen, key=lambda node: len(self.view.partitions_led_by(node)))


@dataclass(frozen=True)
class ChaosFault:
    """A fault. `begin` returns a description. If `stays_available` is set, every partition is acknowledged again within
    `acks_within` seconds of the begin, before the fault is repaired."""

    name: str
    begin: Callable[[FaultContext], None]
    mend: Callable[[FaultContext], None]
    stays_available: bool = True
    min_seconds: float = 0.0
    """Minimum seconds from begin to repair."""
    acks_within: float = SILENT_ACK_SECONDS
    deadline: float = RECOVERY_SECONDS
    """Seconds from repair until everything is live again."""
    starts_balanced: bool = True
    """True if each broker leads its share before the fault."""
    needs_s3: bool = False


def _kill(choose: Callable[[FaultContext], tuple[int, ...]]) -> Callable[[FaultContext], None]:
    def begin(scene: FaultContext) -> None:
        scene.targets = choose(scene)
        scene.trio.kill(*scene.targets)

    return begin


def _freeze(choose: Callable[[FaultContext], tuple[int, ...]]) -> Callable[[FaultContext], None]:
    def begin(scene: FaultContext) -> None:
        scene.targets = choose(scene)
        for node in scene.targets:
            scene.trio.brokers[node].freeze()

    return begin


def _cut_links(
    choose: Callable[[FaultContext], tuple[int, ...]], links: Callable[[int], list[Link]]
) -> Callable[[FaultContext], None]:
    def begin(scene: FaultContext) -> None:
        scene.targets = choose(scene)
        scene.trio.links.cut(link for node in scene.targets for link in links(node))

    return begin


def _start(scene: FaultContext) -> None:
    scene.trio.start(*scene.targets)


def _thaw(scene: FaultContext) -> None:
    for node in scene.targets:
        scene.trio.brokers[node].thaw()


def _mend_links(scene: FaultContext) -> None:
    scene.trio.links.mend()


def _wipe_and_start(scene: FaultContext) -> None:
    for node in scene.targets:
        scene.trio.brokers[node].wipe()
    scene.trio.start(*scene.targets)


def _reset_connections(scene: FaultContext) -> None:
    scene.targets = NODES
    for _ in range(5):
        scene.trio.links.reset(NODES)
        scene.pause(0.5)


def _roll_restarts(scene: FaultContext) -> None:
    """Restarts one broker after the other with SIGTERM, each once everything is whole."""
    scene.targets = NODES
    trio = scene.trio
    for node in sorted(NODES, key=lambda each: each == scene.view.controller):
        code = trio.brokers[node].end(signal.SIGTERM)
        assert code == 0, f"broker {node} ended with {code}: {trio.brokers[node].log_tail()}"
        trio.start(node)
        trio.wait_until(trio.is_in_sync, IN_SYNC_SECONDS, trio.fetch_views)


def _add_fourth(scene: FaultContext) -> None:
    """Adds a broker and gives it its share of the replicas."""
    trio = scene.trio
    trio.add_fourth()
    trio.wait_until(lambda: _are_registered(trio, *NODES, FOURTH), IN_SYNC_SECONDS, trio.fetch_views)
    trio.command("cluster", "rebalance", "--execute")
    trio.wait_until(lambda: trio.is_settled(*NODES, FOURTH), MOVE_SECONDS, trio.fetch_views)


def _remove_fourth(scene: FaultContext) -> None:
    """Moves all replicas off the broker before it stops."""
    trio = scene.trio
    trio.command("cluster", "decommission", str(FOURTH))
    trio.uncordon(FOURTH)
    trio.remove_broker(FOURTH)


def _replace_with_fourth(scene: FaultContext) -> None:
    """Decommissions a leader for good; another broker takes its replicas."""
    scene.targets = leader(scene)
    trio, [hit] = scene.trio, scene.targets
    trio.add_fourth()
    trio.wait_until(lambda: _are_registered(trio, *NODES, FOURTH), IN_SYNC_SECONDS, trio.fetch_views)
    trio.command("cluster", "decommission", str(hit))
    trio.remove_broker(hit)
    trio.wait_until(lambda: trio.is_settled(*sorted({*NODES, FOURTH} - {hit})), MOVE_SECONDS, trio.fetch_views)


def _return_for_fourth(scene: FaultContext) -> None:
    """Brings the broker back with an empty disk, and removes the fourth one."""
    trio, [hit] = scene.trio, scene.targets
    trio.start(hit)
    trio.wait_until(lambda: _are_registered(trio, *NODES, FOURTH), IN_SYNC_SECONDS, trio.fetch_views)
    trio.uncordon(hit)
    _remove_fourth(scene)


def _move_off_leader(scene: FaultContext) -> None:
    """Moves all partitions of a leader to the others at once, and deletes its copies."""
    scene.targets = leader(scene)
    _reassign(scene, lambda place, hit: tuple(node for node in scene.view.replicas[place] if node != hit))


def _move_back(scene: FaultContext) -> None:
    """Moves the partitions back: the broker copies everything again, and is to lead it."""
    _reassign(scene, lambda place, hit: (hit, *(node for node in scene.view.replicas[place] if node != hit)))


def _reassign(scene: FaultContext, to: Callable[[tuple[str, int], int], tuple[int, ...]]) -> None:
    [hit] = scene.targets
    moves = [
        f"{place[0]}/{place[1]}={','.join(map(str, to(place, hit)))}" for place in scene.view.partitions_led_by(hit)
    ]
    scene.trio.command("cluster", "reassign", *moves)


def _are_registered(trio: ChaosCluster, *nodes: int) -> bool:
    view = trio.agreed_view()
    return view is not None and view.brokers == nodes


def _set_bucket_faults(*rules: Callable[[], HttpFault]) -> Callable[[FaultContext], None]:
    def begin(scene: FaultContext) -> None:
        assert scene.trio.s3 is not None
        scene.trio.s3.faults[:] = [make() for make in rules]

    return begin


def _do_all(*acts: Callable[[FaultContext], None]) -> Callable[[FaultContext], None]:
    def act(scene: FaultContext) -> None:
        for each in acts:
            each(scene)

    return act


def _clear_bucket_faults(scene: FaultContext) -> None:
    assert scene.trio.s3 is not None
    scene.trio.s3.faults.clear()


def _do_nothing(scene: FaultContext) -> None:
    """Does nothing: the fault ends by itself."""


def leader(scene: FaultContext) -> tuple[int, ...]:
    return (scene.leader(controller=False),)


def controller(scene: FaultContext) -> tuple[int, ...]:
    return (scene.view.controller,)


def follower(scene: FaultContext) -> tuple[int, ...]:
    return (scene.follower(),)


def all_brokers(scene: FaultContext) -> tuple[int, ...]:
    return NODES


def controller_and_leader(scene: FaultContext) -> tuple[int, ...]:
    return tuple(sorted({scene.view.controller, scene.leader(controller=False)}))


def links_to_brokers(node: int) -> list[Link]:
    """Returns the links of both directions to other brokers; clients still reach the broker."""
    return [link for other in NODES if other != node for link in ((node, other), (other, node))]


def links_to_all(node: int) -> list[Link]:
    """Returns the links of both directions to brokers and clients, without the bucket."""
    return [*links_to_brokers(node), (node, CLIENT), (CLIENT, node)]


def links_out_of(node: int) -> list[Link]:
    """Returns the links from a broker to other brokers; it still receives their messages."""
    return [(node, other) for other in NODES if other != node]


def links_to_bucket(node: int) -> list[Link]:
    return [(node, BUCKET), (BUCKET, node)]


def failing_bucket() -> HttpFault:
    return HttpFault(FaultKind.ERROR)


def lost_replies() -> HttpFault:
    return HttpFault(FaultKind.LOST_REPLY, verbs=WRITES, probability=0.4)


def late_writes() -> HttpFault:
    return HttpFault(FaultKind.LATE_APPLY, verbs=WRITES, probability=0.3, seconds=2.0)


def slow_bucket() -> HttpFault:
    return HttpFault(FaultKind.DELAY, seconds=0.7)


def _machine_of(scene: FaultContext, node: int) -> ChaosBroker:
    return scene.trio.brokers[node % PROCESS_STEP]


def _kill_machines(choose: Callable[[FaultContext], tuple[int, ...]]) -> Callable[[FaultContext], None]:
    """Kills all processes of the machines of the chosen brokers."""

    def begin(scene: FaultContext) -> None:
        machines = sorted({node % PROCESS_STEP for node in choose(scene)})
        scene.targets = tuple(node for each in machines for node in scene.trio.brokers[each].node_ids)
        scene.trio.kill_machines(*machines)

    return begin


def _signal_processes(
    choose: Callable[[FaultContext], tuple[int, ...]], how: signal.Signals
) -> Callable[[FaultContext], None]:
    """Signals single processes of machines."""

    def begin(scene: FaultContext) -> None:
        scene.targets = choose(scene)
        for node in scene.targets:
            os.kill(_machine_of(scene, node).find_processes()[node], how)

    return begin


def _resume_processes(scene: FaultContext) -> None:
    for node in scene.targets:
        os.kill(_machine_of(scene, node).find_processes()[node], signal.SIGCONT)


def _cut_machines(
    choose: Callable[[FaultContext], tuple[int, ...]], links: Callable[[int], list[Link]]
) -> Callable[[FaultContext], None]:
    """Cuts links of the machines of the chosen brokers. Their processes still reach each other."""

    def begin(scene: FaultContext) -> None:
        machines = sorted({node % PROCESS_STEP for node in choose(scene)})
        scene.targets = tuple(node for each in machines for node in scene.trio.brokers[each].node_ids)
        scene.trio.links.cut(link for each in machines for link in links(each))

    return begin


def _start_machines(scene: FaultContext) -> None:
    scene.trio.start(*sorted({node % PROCESS_STEP for node in scene.targets}))


def _wipe_machines_and_start(scene: FaultContext) -> None:
    for node in {node % PROCESS_STEP for node in scene.targets}:
        scene.trio.brokers[node].wipe()
    _start_machines(scene)


def _roll_machines(scene: FaultContext) -> None:
    """Restarts one machine after the other with SIGTERM, each once everything is whole."""
    trio = scene.trio
    scene.targets = trio.node_ids
    for node in sorted(NODES, key=lambda each: each == scene.view.controller % PROCESS_STEP):
        code = trio.brokers[node].end(signal.SIGTERM)
        assert code == 0, f"machine {node} ended with {code}: {trio.brokers[node].log_tail()}"
        trio.start(node)
        trio.wait_until(trio.is_in_sync, IN_SYNC_SECONDS, trio.fetch_views)


def _start_with(count: Callable[[ChaosBroker], int]) -> Callable[[FaultContext], None]:
    """Starts the machine that leads most partitions with another number of processes. The first start is killed at once
    with all that it has started: the next one goes on."""

    def change(scene: FaultContext) -> None:
        trio = scene.trio
        scene.targets = scene.targets or machine_of_leader(scene)
        machine = trio.brokers[scene.targets[0] % PROCESS_STEP]
        code = machine.end(signal.SIGTERM)
        assert code == 0, f"machine {machine.node} ended with {code}: {machine.log_tail()}"
        machine.processes = count(machine)
        trio.start(machine.node)
        scene.pause(random.uniform(0.2, 1.0))
        trio.kill_machines(machine.node)
        trio.start(machine.node)
        trio.wait_until(trio.is_in_sync, IN_SYNC_SECONDS, trio.fetch_views)

    return change


def machine_of_leader(scene: FaultContext) -> tuple[int, ...]:
    """Returns the brokers of the machine that leads most partitions."""

    def count_led(machine: int) -> int:
        return sum(len(scene.view.partitions_led_by(node)) for node in scene.trio.brokers[machine].node_ids)

    return scene.trio.brokers[max(NODES, key=count_led)].node_ids


def all_machines(scene: FaultContext) -> tuple[int, ...]:
    return scene.trio.node_ids


OF_MACHINES = (
    ChaosFault("kill -9 of one process", _signal_processes(leader, signal.SIGKILL), _do_nothing,
        acks_within=DEAD_ACK_SECONDS),
    ChaosFault("kill -9 of the controller's process", _signal_processes(controller, signal.SIGKILL), _do_nothing,
        acks_within=DEAD_ACK_SECONDS),
    ChaosFault("kill -9 of a machine", _kill_machines(machine_of_leader), _start_machines,
        acks_within=DEAD_ACK_SECONDS),
    ChaosFault("kill -9 of the controller's machine", _kill_machines(controller), _start_machines,
        acks_within=DEAD_ACK_SECONDS),
    ChaosFault("kill -9 of all machines", _kill_machines(all_machines), _start_machines, stays_available=False),
    ChaosFault("SIGSTOP of one process", _signal_processes(leader, signal.SIGSTOP), _resume_processes),
    ChaosFault("SIGSTOP of the controller's process", _signal_processes(controller, signal.SIGSTOP),
        _resume_processes),
    ChaosFault("SIGSTOP of a machine", _signal_processes(machine_of_leader, signal.SIGSTOP), _resume_processes),
    ChaosFault("kill -9 of a machine, its disks wiped", _kill_machines(machine_of_leader), _wipe_machines_and_start,
        acks_within=DEAD_ACK_SECONDS),
    ChaosFault("rolling restart of machines", _roll_machines, _do_nothing),
    ChaosFault("a machine with one process, and with all again", _start_with(lambda machine: 1),
        _start_with(lambda machine: machine.processes_at_first)),
    ChaosFault("a leader's machine cut from brokers", _cut_machines(machine_of_leader, links_to_brokers), _mend_links),
    ChaosFault("the controller's machine cut from brokers", _cut_machines(controller, links_to_brokers), _mend_links),
    ChaosFault("a leader's machine cut from brokers and clients", _cut_machines(machine_of_leader, links_to_all),
        _mend_links),
    ChaosFault("what a leader's machine sends to brokers is lost", _cut_machines(machine_of_leader, links_out_of),
        _mend_links),
    ChaosFault("a leader's machine cut from the bucket", _cut_machines(machine_of_leader, links_to_bucket), _mend_links,
        min_seconds=12, needs_s3=True),
    ChaosFault("the controller's machine cut from the bucket", _cut_machines(controller, links_to_bucket), _mend_links,
        min_seconds=12, needs_s3=True),
)  # fmt: skip
"""Faults of three machines of several processes, whose parent starts a process again that has ended."""
ON_ANY_STORE = (
    ChaosFault("kill -9 of a leader", _kill(leader), _start, acks_within=DEAD_ACK_SECONDS),
    ChaosFault("kill -9 of the controller", _kill(controller), _start, acks_within=DEAD_ACK_SECONDS),
    ChaosFault("kill -9 of a follower", _kill(follower), _start, acks_within=DEAD_ACK_SECONDS, starts_balanced=False),
    ChaosFault("kill -9 of two", _kill(controller_and_leader), _start, stays_available=False, min_seconds=3),
    ChaosFault("kill -9 of all", _kill(all_brokers), _start, stays_available=False),
    ChaosFault("SIGSTOP of a leader", _freeze(leader), _thaw),
    ChaosFault("SIGSTOP of the controller", _freeze(controller), _thaw),
    ChaosFault("SIGSTOP of a follower", _freeze(follower), _thaw, starts_balanced=False),
    ChaosFault("SIGSTOP of all", _freeze(all_brokers), _thaw, stays_available=False, min_seconds=8),
    ChaosFault("a leader cut from brokers", _cut_links(leader, links_to_brokers), _mend_links),
    ChaosFault("the controller cut from brokers", _cut_links(controller, links_to_brokers), _mend_links),
    ChaosFault("a leader cut from brokers and clients", _cut_links(leader, links_to_all), _mend_links),
    ChaosFault("what a leader sends to brokers is lost", _cut_links(leader, links_out_of), _mend_links),
    ChaosFault("connections reset, five times", _reset_connections, _do_nothing),
    ChaosFault("kill -9 of a leader, its disk wiped", _kill(leader), _wipe_and_start, acks_within=DEAD_ACK_SECONDS),
    ChaosFault("rolling restart", _roll_restarts, _do_nothing),
    ChaosFault("what a leader leads moved off it, and back", _move_off_leader, _move_back),
    ChaosFault(
        "a broker added and rebalanced, then decommissioned", _add_fourth, _remove_fourth, deadline=MOVE_SECONDS
    ),
    ChaosFault(
        "a leader decommissioned, and its successor", _replace_with_fourth, _return_for_fourth, deadline=MOVE_SECONDS
    ),
)
ON_S3 = (
    ChaosFault("bucket away", _set_bucket_faults(failing_bucket), _clear_bucket_faults, min_seconds=10, needs_s3=True),
    ChaosFault("bucket away, kill -9 of a leader", _do_all(_set_bucket_faults(failing_bucket), _kill(leader)),
          _do_all(_clear_bucket_faults, _start), stays_available=False, min_seconds=4, needs_s3=True),
    ChaosFault("bucket away, kill -9 of all", _do_all(_set_bucket_faults(failing_bucket), _kill(all_brokers), _start),
        _clear_bucket_faults,
          stays_available=False, min_seconds=4, needs_s3=True),
    ChaosFault("replies of the bucket lost, kill -9 of the controller",
        _do_all(_set_bucket_faults(lost_replies), _kill(controller)),
          _do_all(_start, _clear_bucket_faults), min_seconds=3, needs_s3=True),
    ChaosFault("writes land late, kill -9 of the controller", _do_all(_set_bucket_faults(late_writes),
        _kill(controller)),
          _do_all(_start, _clear_bucket_faults), min_seconds=3, needs_s3=True),
    ChaosFault("bucket slow, kill -9 of a leader", _do_all(_set_bucket_faults(slow_bucket), _kill(leader)),
          _do_all(_start, _clear_bucket_faults), needs_s3=True),
    ChaosFault("a follower cut from the bucket", _cut_links(follower, links_to_bucket), _mend_links, min_seconds=12,
        needs_s3=True),
    ChaosFault("a leader cut from the bucket", _cut_links(leader, links_to_bucket), _mend_links, min_seconds=12,
        needs_s3=True),
    ChaosFault("the controller cut from the bucket, kill -9 of a leader",
          _do_all(_cut_links(controller, links_to_bucket), _kill(leader)), _do_all(_mend_links, _start),
          stays_available=False, min_seconds=12, needs_s3=True),
)  # fmt: skip
ALL_FAULTS = (*ON_ANY_STORE, *ON_S3)
OF_BUCKET_FLUSH = (
    ChaosFault("kill -9 of a leader, its disk lost", _kill(leader), _wipe_and_start, acks_within=DEAD_ACK_SECONDS),
    ChaosFault("kill -9 of the controller, its disk lost", _kill(controller), _wipe_and_start,
        acks_within=DEAD_ACK_SECONDS),
    ChaosFault("kill -9 of two, their disks lost", _kill(controller_and_leader), _wipe_and_start,
        stays_available=False, min_seconds=3),
    ChaosFault("kill -9 of all, their disks lost", _kill(all_brokers), _wipe_and_start, stays_available=False),
    ChaosFault("SIGSTOP of a leader", _freeze(leader), _thaw),
    ChaosFault("a leader cut from brokers", _cut_links(leader, links_to_brokers), _mend_links),
    ChaosFault("rolling restart", _roll_restarts, _do_nothing),
    ChaosFault("bucket away, kill -9 of a leader, its disk lost",
        _do_all(_set_bucket_faults(failing_bucket), _kill(leader)), _do_all(_clear_bucket_faults, _wipe_and_start),
        stays_available=False, min_seconds=4, needs_s3=True),
    ChaosFault("bucket away, kill -9 of all, their disks lost",
        _do_all(_set_bucket_faults(failing_bucket), _kill(all_brokers)), _do_all(_clear_bucket_faults, _wipe_and_start),
        stays_available=False, min_seconds=4, needs_s3=True),
    ChaosFault("replies of the bucket lost, kill -9 of all, their disks lost",
        _do_all(_set_bucket_faults(lost_replies), _kill(all_brokers)), _do_all(_clear_bucket_faults, _wipe_and_start),
        stays_available=False, min_seconds=4, needs_s3=True),
    ChaosFault("writes land late, kill -9 of the controller, its disk lost",
        _do_all(_set_bucket_faults(late_writes), _kill(controller)),
        _do_all(_clear_bucket_faults, _wipe_and_start), min_seconds=3, stays_available=False, needs_s3=True),
    ChaosFault("a leader cut from the bucket", _cut_links(leader, links_to_bucket), _mend_links, min_seconds=12,
        stays_available=False, needs_s3=True),
)  # fmt: skip
"""Faults of brokers whose topics have `flush=bucket`: no process comes back with its disk."""
FIRST = "bucket away, kill -9 of a leader"
"""The fault of `make test`: the brokers lose a process and what they would ask, at once."""
SHORT = {
    "file": (
        "SIGSTOP of the controller", "kill -9 of all", "the controller cut from brokers",
        "kill -9 of a leader, its disk wiped", "SIGSTOP of a leader", "what a leader leads moved off it, and back",
        "rolling restart",
    ),
    "s3": (
        "bucket away", "replies of the bucket lost, kill -9 of the controller", FIRST,
    ),
}  # fmt: skip


def faults_by_name(names: tuple[str, ...]) -> list[ChaosFault]:
    by_name = {fault.name: fault for fault in (*ALL_FAULTS, *OF_MACHINES, *OF_BUCKET_FLUSH)}
    return [by_name[name] for name in names]
