"""The cluster as one broker knows it: the newest committed image, the settings in force, and the broker itself.

The parts of a broker take this value, and none of them takes the whole broker. This file decides nothing.
"""

from __future__ import annotations

from tiered.config.settings import Settings
from tiered.controller.change_time import ChangeTime
from tiered.controller.false_alarms import FalseAlarms
from tiered.metadata.dynamic_config import DynamicBrokerConfig
from tiered.metadata.image import Image
from tiered.metadata.loader import MetadataLoader
from tiered.ports import Clock

SUSPECT_MS_MIN = 2_000
"""The shortest suspect timeout that is chosen by itself: twice a pause that a busy machine may make."""


class MemberView:
    """The view of one broker: `node_id` and `incarnation` are its own, `loader` has the image, `config` the settings.

    Every property has the value of now: image and settings change while the broker runs.
    """

    def __init__(self, incarnation: str, config: DynamicBrokerConfig, loader: MetadataLoader, clock: Clock) -> None:
        self.incarnation = incarnation
        self.config = config
        self.loader = loader
        self._clock = clock
        self._false_alarms = FalseAlarms()
        self.change_time = ChangeTime()
        """The cost of changes of metadata on this broker."""

    @property
    def node_id(self) -> int:
        """The id of this broker."""
        return self.config.node_id

    @property
    def image(self) -> Image:
        """The newest committed image that this broker knows; the applied one may be older (M5)."""
        return self.loader.image

    @property
    def settings(self) -> Settings:
        """The settings in force on this broker."""
        return self.config.current

    @property
    def session_ms(self) -> int:
        """Session timeout: after this time without contact, broker and controller each count the other as gone."""
        return self.settings.broker_session_timeout_ms

    @property
    def suspect_ms(self) -> int:
        """Suspect timeout: after this time of silence and without a reply, a broker counts as gone. A broker without
        contact for this time acknowledges nothing with acks=all (R6)."""
        chosen_ms = self.settings.tiered_broker_suspect_timeout_ms
        return min(max(self.session_ms // 3, SUSPECT_MS_MIN) if chosen_ms < 0 else chosen_ms, self.session_ms)

    def suspect_ms_of(self, node_id: int) -> int:
        """Returns the suspect timeout of one broker: it is longer after false alarms (`false_alarms`)."""
        return self._false_alarms.suspect_ms(node_id, self.suspect_ms, self.session_ms, self._clock.mono_ns())

    def on_image(self) -> None:
        """Looks for false alarms. The entries that a start reads are of an earlier time."""
        own = self.image.brokers.get(self.node_id)
        if own is not None and own.incarnation == self.incarnation:
            self._false_alarms.on_brokers(self.image.brokers, self.session_ms, self._clock.mono_ns())

    @property
    def is_early(self) -> bool:
        """True if the suspect timeout is shorter than the session timeout."""
        return self.suspect_ms < self.session_ms

    @property
    def heartbeat_ms(self) -> int:
        """Longest time for which the controller holds a heartbeat: several of them fit into the suspect timeout, beside
        a pause of half of it."""
        interval_ms = self.settings.broker_heartbeat_interval_ms
        return min(interval_ms, self.suspect_ms // 8) if self.is_early else interval_ms

    @property
    def controller(self) -> tuple[int, str]:
        """The controller that the image names, as node id and incarnation."""
        return self.image.controller, self.image.controller_incarnation

    @property
    def controller_address(self) -> str:
        """HOST:PORT of the controller; "" if it has not announced it, and if this broker is the controller."""
        image = self.image
        known = image.brokers.get(image.controller)
        if known is None or known.node_id == self.node_id or known.incarnation != image.controller_incarnation:
            return ""
        return self.address_of(image.controller)

    def address_of(self, node_id: int) -> str:
        """Returns HOST:PORT of a broker for other brokers; "" if the broker has not announced it."""
        known = self.image.brokers.get(node_id)
        return known.address(self.settings.inter_broker_listener_name) if known is not None else ""
