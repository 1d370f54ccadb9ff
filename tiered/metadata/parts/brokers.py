"""The registered brokers and their settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from tiered.ids import machine_of
from tiered.metadata import changes as kinds
from tiered.metadata.changes import BAD_DISKS, DISK_FULL, DISK_USABLE
from tiered.metadata.parts.json_fields import fields_of
from tiered.metadata.stored_configs import merge_configs, normalize_broker_configs
from tiered.value import value

_RegistrationChange = (
    kinds.BrokerRegistered
    | kinds.BrokerStopped
    | kinds.BrokerFenced
    | kinds.BrokerUnfenced
    | kinds.BrokerStopping
    | kinds.BrokerDiskReported
    | kinds.BrokerUnregistered
)


def inter_broker_address(listeners: Mapping[str, str], name: str) -> str:
    """Returns the address for other brokers: the listener called `name`, else the first one; "" if there is none."""
    return listeners.get(name) or next(iter(listeners.values()), "")


@value
class BrokerImage:
    """The last incarnation that took a node id.

    `alive` until it has stopped; `fenced` while the controller has no contact.
    """

    node_id: int
    incarnation: str
    directory: str
    http: str
    rack: str
    alive: bool
    registered_ms: int
    listeners: Mapping[str, str] = field(default_factory=dict)
    """Addresses for clients: HOST:PORT by listener name."""
    fenced: bool = False
    stopping: bool = False
    """True if it has announced a stop and still serves."""
    advertised_http: str = ""
    """The `http://HOST:PORT` for HTTP clients; "" if that is `http`."""
    disk: str = DISK_USABLE
    """`usable`, `full`, `stalled` or `recovering`, as in `BrokerDiskReported`."""
    disk_since_ms: int = 0
    """Time of the report of `disk`; 0 if there was none."""
    moved_leaders: int = 0
    """Leaderships that other brokers took because the disk became full or stalled."""
    process: int = 0
    """Number of the process on its machine; 0 for the first one, and for a broker that has its machine alone."""

    @property
    def machine(self) -> int:
        """The machine that it runs on: the node id of the first process there."""
        return machine_of(self.node_id, self.process)

    @property
    def is_disk_full(self) -> bool:
        """True if it serves and its disk is full."""
        return self.live and self.disk == DISK_FULL

    @property
    def bad_disk(self) -> str:
        """`full` or `stalled` if it serves and its disk is that; else ""."""
        return self.disk if self.live and self.disk in BAD_DISKS else ""

    @property
    def live(self) -> bool:
        """True if it may lead and be in sync."""
        return self.alive and not self.fenced

    def address(self, listener: str) -> str:
        """Returns its HOST:PORT for other brokers (`inter_broker_address`)."""
        return inter_broker_address(self.listeners, listener)


@value
class BrokersImage:
    """Brokers by id, in order of their first registration, and the settings that operators gave to brokers."""

    KINDS = (
        kinds.BrokerRegistered, kinds.BrokerStopped, kinds.BrokerFenced, kinds.BrokerUnfenced, kinds.BrokerStopping,
        kinds.BrokerDiskReported, kinds.BrokerUnregistered, kinds.BrokerConfigChanged,
    )  # fmt: skip

    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    configs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def apply(self, changes: Iterable[_RegistrationChange | kinds.BrokerConfigChanged]) -> BrokersImage:
        """Returns the part after the changes."""
        replay = _BrokersReplay(self)
        for change in changes:
            replay.apply(change)
        return BrokersImage(replay.brokers, replay.configs)

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {
            "brokers": [fields_of(broker) for broker in self.brokers.values()],
            "broker_configs": [{"node_id": node, "configs": configs} for node, configs in self.configs.items()],
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> BrokersImage:
        """Returns the part of a snapshot."""
        return cls(
            {broker["node_id"]: BrokerImage(**broker) for broker in body["brokers"]},
            {each["node_id"]: normalize_broker_configs(each["configs"]) for each in body["broker_configs"]},
        )


class _BrokersReplay:
    def __init__(self, before: BrokersImage) -> None:
        self.brokers = dict(before.brokers)
        self.configs = dict(before.configs)

    def apply(self, change: _RegistrationChange | kinds.BrokerConfigChanged) -> None:
        known = self.brokers.get(change.node_id)
        if isinstance(change, kinds.BrokerConfigChanged):
            old = self.configs.get(change.node_id, {})
            self.configs[change.node_id] = normalize_broker_configs(merge_configs(old, change.configs))
        elif isinstance(change, kinds.BrokerRegistered):
            self.brokers[change.node_id] = _register(known, change)
        elif known is not None and known.incarnation == change.incarnation:
            self._change_registered(known, change)
        # A change of another incarnation is about a process that has ended. It says nothing of the one that is known.

    def _change_registered(self, known: BrokerImage, change: _RegistrationChange) -> None:
        match change:
            case kinds.BrokerUnregistered():
                del self.brokers[change.node_id]
                self.configs.pop(change.node_id, None)
            case kinds.BrokerStopped():
                self.brokers[change.node_id] = replace(known, alive=False)
            case kinds.BrokerStopping():
                self.brokers[change.node_id] = replace(known, stopping=True)
            case kinds.BrokerDiskReported():
                self.brokers[change.node_id] = replace(
                    known, disk=change.disk, disk_since_ms=change.at_ms, moved_leaders=change.moved
                )
            case _:
                self.brokers[change.node_id] = replace(known, fenced=isinstance(change, kinds.BrokerFenced))


def _register(known: BrokerImage | None, change: kinds.BrokerRegistered) -> BrokerImage:
    """Returns a registered broker. The same incarnation may register again, with other addresses."""
    registered = BrokerImage(
        change.node_id, change.incarnation, change.directory, change.http, change.rack, True, change.at_ms,
        change.listeners, advertised_http=change.advertised_http, process=change.process,
    )  # fmt: skip
    if known is None or known.incarnation != change.incarnation:
        return registered
    return replace(
        registered, fenced=known.fenced, stopping=known.stopping, disk=known.disk,
        disk_since_ms=known.disk_since_ms, moved_leaders=known.moved_leaders,
    )  # fmt: skip
