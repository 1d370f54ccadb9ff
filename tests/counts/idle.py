"""`python -m tests.counts.idle`: counts the work of a broker without clients in a simulated minute, and the bytes of
idle things. It prints them as JSON."""

from __future__ import annotations

import asyncio
import json

from tests.counts import memory
from tests.counts.meter import CallMeter
from tests.sim.rig.broker_rig import SimBrokerRig, run
from tiered.config.listeners import Endpoint
from tiered.config.settings import Settings
from tiered_api.kafka.server.server import serve_kafka

MINUTE_SECONDS = 60.0
SETTLED_SECONDS = 600.0
"""Time after which all that a start leaves to do is done."""


def count_minute() -> dict[str, float]:
    """Returns the calls of functions of the product in a minute."""
    meter = CallMeter(memory.PRODUCT)

    async def scenario(rig: SimBrokerRig) -> None:
        await rig.start(Settings(tiered_internal_configs_enable=True))
        await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "one", 0)})
        await rig.create()
        await asyncio.sleep(SETTLED_SECONDS)
        meter.begin()
        await asyncio.sleep(MINUTE_SECONDS)
        meter.end()
        await rig.stop()

    run(scenario)
    return {"calls": meter.total}


if __name__ == "__main__":
    bytes_of = {f"idle {name}": {"bytes": size} for name, size in memory.count_bytes_of_each().items()}
    print(json.dumps({"idle minute": count_minute(), **bytes_of}))
