"""Rules over one step of a state that a broker holds: I14 and I15 of transactions, and I22 of deletions.

Each step is checked when it happens. The situation that shows a broken step to a client comes seldom: it needs a second
fault within milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.sim.cluster.observer import patched
from tiered.groups.pending_offsets import PendingOffsets
from tiered.groups.records import OffsetKey
from tiered.replication.leader_state import LeaderState
from tiered.shard import ProducerIdAndEpoch
from tiered.transactions import end
from tiered.transactions.decision import TransactionDecision
from tiered.transactions.metadata import TransactionMetadata
from tiered.transactions.requests import MarkersWritten

Step = Callable[..., Any]


class TransitionRules:
    """Checks the steps of all brokers of one run. `report` gets the rule and what broke it."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._marked: dict[tuple[str, int, int], set[Any]] = {}
        """The partitions with a committed marker, by transactional id, producer id and epoch of the marker."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Checks all steps within the context."""
        with ExitStack() as stack:
            for owner, name, make in (
                (LeaderState, "is_deleted_on_isr", self._deletion),
                (PendingOffsets, "end_transaction", self._end_of_offsets),
                (end, "handle_markers_written", self._markers),
                (end, "_complete", self._completion),
            ):
                stack.enter_context(patched(owner, name, make))
            yield

    def _deletion(self, original: Step) -> Step:
        """I22: a deletion is done once no broker that is in the ISR, or may be by now, serves a deleted record."""

        def is_deleted_on_isr(state: LeaderState, offset: int) -> bool:
            is_done = bool(original(state, offset))
            for node in (state._isr | state._proposed) - {state.node_id} if is_done else ():
                known = state._followers.get(node)
                if offset and (known is None or known.log_start < offset):
                    self._report("I22", f"{state!r} deleted below {offset}, and broker {node} may serve what is below")
            return is_done

        return is_deleted_on_isr

    def _end_of_offsets(self, original: Step) -> Step:
        """I15: an offset that a transaction commits wins over all that were written before it."""

        def end_transaction(pending: PendingOffsets, marker: ProducerIdAndEpoch, is_commit: bool) -> Any:
            order = {
                OffsetKey(group, *place): list(by_producer)
                for group, places in pending._groups.items()
                for place, by_producer in places.items()
            }
            committed = original(pending, marker, is_commit)
            for key, _ in committed:
                earlier = order[key][: order[key].index(marker.producer_id)]
                left = pending._groups.get(key.group, {}).get(key[1:], {})
                if any(not left[producer_id].is_superseded for producer_id in earlier):
                    self._report("I15", f"{key}: an older offset outlives that of producer {marker}")
            return committed

        return end_transaction

    def _markers(self, original: Step) -> Step:
        def handle_markers_written(decision: TransactionDecision, request: MarkersWritten) -> Any:
            key = request.transactional_id, request.producer_id, request.producer_epoch
            self._marked.setdefault(key, set()).update(request.partitions)
            return original(decision, request)

        return handle_markers_written

    def _completion(self, original: Step) -> Step:
        """I14: a transaction is complete once each of its partitions has its own marker."""

        def complete(decision: TransactionDecision, transactional_id: str, found: TransactionMetadata) -> Any:
            key = transactional_id, found.producer_id, found.producer_epoch
            missing = found.partitions - self._marked.get(key, set())
            if missing:
                self._report("I14", f"{transactional_id} is complete without markers in {sorted(missing)}")
            return original(decision, transactional_id, found)

        return complete
