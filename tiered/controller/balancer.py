"""The balancer of an active controller: carries out one pure plan over the committed image, again and again.

The plans are in `preferred_leaders` and `missing_replicas`; this file decides the time. A plan is made twice, with a
pause between, and the plan itself says which of its steps are carried out then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from tiered.config.settings import Settings
from tiered.controller.member_view import MemberView
from tiered.controller.requests import ElectLeaders, Reassign
from tiered.errors import Refused
from tiered.metadata.image import Image
from tiered.ports import Clock

log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""Pause between the two plans: brokers that come back together are then balanced together."""

Step = TypeVar("Step")


class BalancingPlan(Protocol[Step]):
    """Pure decisions of one balancer.

    `repeats`: after its steps are carried out, the plan is made again without a wait. `on_success` and `on_refusal` are
    the events in the log.
    """

    @property
    def on_success(self) -> str: ...
    @property
    def on_refusal(self) -> str: ...
    @property
    def batch_max(self) -> int:
        """Most steps in one request."""

    @property
    def repeats(self) -> bool: ...

    def is_needed(self, image: Image, settings: Settings) -> bool:
        """True if this new image calls for a plan. Called once with each image."""

    def interval_seconds(self, settings: Settings) -> float | None:
        """Returns the time after which a plan is made though `is_needed` called for none; None for never."""

    def plan(self, image: Image, settings: Settings) -> tuple[Step, ...]:
        """Returns all steps that would be right now."""

    def confirm(self, before: tuple[Step, ...], after: tuple[Step, ...]) -> tuple[Step, ...]:
        """Returns the steps to carry out, from the plans before and after the pause; none if `before` is empty."""

    def to_request(self, steps: tuple[Step, ...]) -> ElectLeaders | Reassign:
        """Returns the request to the controller that carries out these steps."""


class Balancer(Generic[Step]):
    """The loop of one plan. `submit` sends the controller a request; `view` has the committed image."""

    def __init__(
        self,
        plan: BalancingPlan[Step],
        submit: Callable[[ElectLeaders | Reassign], Awaitable[Any]],
        view: MemberView,
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._submit = submit
        self._view = view
        self._clock = clock
        self._wake = asyncio.Event()

    def on_image(self) -> None:
        """Wakes the loop if the changed image calls for a plan."""
        if self._plan.is_needed(self._view.image, self._view.settings):
            self._wake.set()

    async def run(self) -> None:
        """Runs the loop until it is cancelled."""
        planned: tuple[Step, ...] = ()
        while True:
            if planned:
                await self._clock.sleep(SETTLE_SECONDS)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._plan.interval_seconds(self._view.settings)):
                        await self._wake.wait()
            self._wake.clear()
            before, planned = planned, self._make_plan()
            due = self._plan.confirm(before, planned)
            if due:
                await self._carry_out(due)
                planned = self._make_plan() if self._plan.repeats else ()

    def _make_plan(self) -> tuple[Step, ...]:
        return self._plan.plan(self._view.image, self._view.settings)

    async def _carry_out(self, steps: tuple[Step, ...]) -> None:
        """Submits the steps in batches, up to the first batch that is refused: a later plan has the rest."""
        for start in range(0, len(steps), self._plan.batch_max):
            batch = steps[start : start + self._plan.batch_max]
            try:
                await self._submit(self._plan.to_request(batch))
            except Refused as refused:
                log.warning("%s partitions=%d why=%s", self._plan.on_refusal, len(steps) - start, refused)
                return
            log.info("%s partitions=%d", self._plan.on_success, len(batch))
