"""Test of a broken invariant: a broker that finds one ends, and sends no reply that depends on it."""

from __future__ import annotations

import pytest

from tests.e2e.kafka_site import produce
from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, run
from tiered.config.listeners import Endpoint
from tiered.controller.requests import CreateTopic
from tiered.errors import Refused, Unavailable
from tiered.replication.leader_state import LeaderState
from tiered_api.kafka.client.connection import open_connection
from tiered_api.kafka.protocol.messages.produce import ProduceResponse
from tiered_api.kafka.server.server import serve_kafka


@run_by(run)
async def test_broker_with_a_broken_invariant_ends_without_a_reply(
    rig: SimBrokerRig, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test puts in a bug: the leader counts one record more than the log has."""
    await rig.start(QUICK)
    await rig.broker.submit(CreateTopic("t"))
    replica = rig.broker.leader_replica("t", 0)
    server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
    link = await open_connection(rig.network.host("far"), "one", server.addresses["PLAINTEXT"].port, "far", 5)
    replica.state._is_sole_member = False
    monkeypatch.setattr(LeaderState, "_position_of", lambda partition, _: partition.end + 1)
    with pytest.raises(Unavailable):
        await link.send(produce(replica, raw=batch([b"v"])), ProduceResponse, 5)
    assert rig.broker.ended.is_set() and replica.high_watermark == 0
    with pytest.raises(Refused, match="the broker failed"):
        replica.append_now(batch([b"w"]), 1)
    await server.close()
