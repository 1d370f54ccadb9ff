"""The settings of one broker: those that it was started with, and those in force (KIP-226).

The metadata log overrides the settings of the start; `tiered.metadata.effective_config` says how.
"""

from __future__ import annotations

from tiered.config.processes import share_out
from tiered.config.settings import Settings
from tiered.metadata.effective_config import broker_settings, overrides
from tiered.metadata.image import Image


class DynamicBrokerConfig:
    """The settings of one broker. `startup` never changes, `current` changes with the applied image. A number
    of the machine is whole in `startup`, and `current` has the share of this process."""

    def __init__(self, startup: Settings) -> None:
        self.startup = startup
        self.current = share_out(startup)
        self._overrides: dict[str, str] = {}

    @property
    def node_id(self) -> int:
        return self.startup.node_id

    def apply_image(self, image: Image) -> None:
        """Takes the settings in force as of an image. Raises `Refused` if they contradict each other."""
        given = overrides(image, self.startup, self.node_id)
        if given != self._overrides:
            self.current, self._overrides = share_out(broker_settings(image, self.startup, self.node_id)), given
