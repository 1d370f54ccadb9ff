"""One partition of an internal topic that this broker leads: its coordinator, and what waits until that is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from tiered.coordinator.runtime import CoordinatorRuntime, ReplyT, RequestT, ShardT
from tiered.coordinator.snapshot import SnapshotName
from tiered.replication.leader_replica import LeaderReplica


@dataclass(eq=False, slots=True)
class CoordinatorPartition(Generic[ShardT, RequestT, ReplyT]):
    """A partition that this broker leads.

    `coordinator` is None while the shard loads, and `load_error` says why that takes long. `snapshot_names` are the
    snapshots in the bucket, as far as this leader knows.
    """

    replica: LeaderReplica
    coordinator: CoordinatorRuntime[ShardT, RequestT, ReplyT] | None = None
    snapshot_names: tuple[SnapshotName, ...] = ()
    load_error: str = ""
    deferred_requests: dict[RequestT, None] = field(default_factory=dict)
    """Requests that nobody waits for, to be decided once the shard is loaded. Each is kept once."""
    written_before_slot: int = 0
    """Everything that a load finds was written before this slot of the metadata. The partition may be led much later
    than that, if its records are in chains."""

    def submit(self, request: RequestT) -> None:
        """Decides a request that nobody waits for: now, or once the shard is loaded."""
        if self.coordinator is not None:
            self.coordinator.submit_unawaited(request)
        else:
            self.defer(request)

    def defer(self, request: RequestT) -> None:
        """Keeps a request for a shard that loads. A loaded shard does not need it."""
        if self.coordinator is None:
            self.deferred_requests[request] = None

    def serve(self, coordinator: CoordinatorRuntime[ShardT, RequestT, ReplyT]) -> None:
        """Serves a loaded coordinator from now on."""
        self.load_error = ""
        self.coordinator = coordinator

    def submit_deferred(self) -> None:
        """Decides the requests that came during the load."""
        requests, self.deferred_requests = self.deferred_requests, {}
        for request in requests:
            self.submit(request)
