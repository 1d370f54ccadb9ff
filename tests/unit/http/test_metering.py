"""Test of the charge of work that goes on between the requests of a client."""

from __future__ import annotations

import asyncio
import time

from tests.scenario import run_alone, run_by
from tiered.access.client_quotas import ClientQuotas
from tiered.config.settings import Settings
from tiered.metadata.image import Image
from tiered.metadata.parts.quotas import ClientQuotasImage
from tiered.metrics import Metrics
from tiered.quotas.precedence import Limit
from tiered.spending import spent_by
from tiered.system.clock import SystemClock
from tiered.thread_pool import ThreadPool
from tiered_api.http.exchange.metering import BackgroundMeter

BOUND = 1e-3
ALICE = Limit(BOUND, "alice", "", "request_percentage")


def burn() -> None:
    """Uses 10 ms of CPU time."""
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass


@run_by(run_alone)
async def test_thread_of_a_task_that_outlives_its_request_counts_for_the_client() -> None:
    quotas = ClientQuotas(Settings(), SystemClock(), Metrics())
    quotas.apply_image(Image(quotas_image=ClientQuotasImage({(("user", "alice"),): {"request_percentage": BOUND}})))
    pool, begin = ThreadPool("test", 1), asyncio.Event()

    async def work() -> None:
        await begin.wait()
        await pool.run(burn)

    with spent_by(BackgroundMeter(quotas, "alice", "app")):
        task = asyncio.create_task(work())
    assert quotas.find_pause(ALICE) == 0
    begin.set()
    await task
    assert quotas.find_pause(ALICE) > 0
    assert quotas.find_pause(ALICE._replace(user="bob")) == 0
    pool.close()
