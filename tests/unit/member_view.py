"""The view of a broker without its cluster member: a loader that applies nothing, and the images that a test sets."""

from __future__ import annotations

from tiered.config.settings import Settings
from tiered.controller.member_view import MemberView
from tiered.metadata.dynamic_config import DynamicBrokerConfig
from tiered.metadata.image import Image
from tiered.metadata.loader import MetadataLoader
from tiered.system.clock import SystemClock


async def _apply_nothing(old: Image, new: Image) -> None:
    raise AssertionError("nobody runs this loader")


def make_view(image: Image | None = None, settings: Settings | None = None, incarnation: str = "") -> MemberView:
    """Returns the view of a broker that knows `image`; a test sets `view.loader.image` to change it."""
    loader = MetadataLoader(_apply_nothing, lambda changes, old, new: None, lambda: None)
    loader.image = image or Image()
    return MemberView(incarnation, DynamicBrokerConfig(settings or Settings()), loader, SystemClock())
