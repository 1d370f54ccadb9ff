"""Kafka's setting names that differ here or have no effect, so that a Kafka broker's own file loads unchanged."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.config.setting import SettingRow

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS

LARGER_UNITS = {
    "log.retention.minutes": ("log.retention.ms", MINUTE_MS),
    "log.retention.hours": ("log.retention.ms", HOUR_MS),
    "log.roll.hours": ("log.roll.ms", HOUR_MS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", HOUR_MS),
}
"""Kafka's other names of one setting, finest unit first; the finest that is given wins."""

SAME_MEANING = {"log.dirs": "data.dir", "log.dir": "data.dir", "broker.id": "node.id"}
"""Names in Kafka's broker files for settings that have another name here."""

ONE_PROCESS = "a process is broker and controller in one"
ONE_LOOP = "network and requests share one loop"
AT_THE_DEADLINE = "a transaction is aborted at its timeout, not at the next check"
NO_ZOOKEEPER = "the cluster metadata is in the bucket"
WITHOUT_EFFECT = {
    "process.roles": ONE_PROCESS,
    "controller.quorum.bootstrap.servers": ONE_PROCESS,
    "controller.quorum.voters": ONE_PROCESS,
    "controller.quorum.auto.join.enable": ONE_PROCESS,
    "zookeeper.connect": NO_ZOOKEEPER,
    "zookeeper.connection.timeout.ms": NO_ZOOKEEPER,
    "num.network.threads": ONE_LOOP,
    "num.io.threads": ONE_LOOP,
    "num.recovery.threads.per.data.dir": ONE_LOOP,
    "socket.send.buffer.bytes": ONE_LOOP,
    "socket.receive.buffer.bytes": ONE_LOOP,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": AT_THE_DEADLINE,
}
"""Names in Kafka's own server.properties that have no effect here, with the reason.

They are accepted with a warning, so that such a file loads.
"""

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADERS_ONLY = "org.apache.kafka.common.replica.LeaderSelector"
"""Kafka's class names for the choice of the replica that consumers read from."""

_LONG_MAX = 2**63 - 1


def resolve_aliases(given: Mapping[str, str], table: Mapping[str, SettingRow]) -> dict[str, str]:
    """Returns `given` with Kafka's other names replaced by the one name of each setting in `table`."""
    other_names = {*LARGER_UNITS, *SAME_MEANING, *WITHOUT_EFFECT}
    renamed = {name: text for name, text in given.items() if name not in other_names}
    for other, name in SAME_MEANING.items():
        if other in given:
            if "," in given[other]:
                raise table[name].refuse(given[other], f"{other} takes one directory")
            renamed.setdefault(name, given[other])
    for other, (name, unit) in LARGER_UNITS.items():
        if other in given:
            row = SettingRow(other, 1, "", -1, _LONG_MAX // unit)
            number = row.parse(given[other])
            assert isinstance(number, int)
            renamed.setdefault(name, str(number * unit if number > 0 else number))
    return renamed
