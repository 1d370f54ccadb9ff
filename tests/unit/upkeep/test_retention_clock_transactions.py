"""Tests of retention while a transaction is open: no record at or above the last stable offset is deleted."""

from __future__ import annotations

from tests.scenario import in_rig
from tests.unit.hot.transactions import TransactionWriter
from tests.unit.replication.rig import ReplicationRig
from tests.unit.upkeep.test_tiering_switches import fill, run_passes, small

OPEN_AT, END = 20, 100


@in_rig(ReplicationRig)
async def test_records_of_an_open_transaction_outlive_total_retention(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    replica = await broker.lead(0, [1])
    replica.log.configure(small(retention_bytes=3000, remote_storage_enable=False))
    fill(replica, 0, OPEN_AT)
    assert TransactionWriter(replica.log).write(7) == OPEN_AT
    replica.on_config_changed()  # the high watermark moves to the log end
    fill(replica, OPEN_AT + 1, END)
    for _ in range(3):
        await run_passes(broker, replica)
    assert replica.last_stable_offset == OPEN_AT
    assert 0 < replica.log_start_offset <= OPEN_AT < replica.high_watermark == END
