"""The pots of one broker: their levels in metrics and in the health report, and their refusals in log and audit log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tiered.access.audit_log import AuditLog
from tiered.metrics import Metrics
from tiered.ports import Clock
from tiered.quotas.shares import Holdings, Pot, find_share

REPEAT_NS = 600 * 10**9
"""Time after which a holder that is still refused is reported again."""
REPORTED_MAX = 1_000
"""Most pairs of a pot and a holder whose report is remembered; the oldest goes first."""

log = logging.getLogger(__name__)


class Pots:
    """The pots whose holdings this broker knows."""

    def __init__(self, clock: Clock, metrics: Metrics, audit: AuditLog) -> None:
        self._clock = clock
        self._audit = audit
        self._holdings: dict[str, Holdings] = {}
        self._reported: dict[tuple[str, str], int] = {}
        self._refusals = metrics.counter(
            "tiered_pot_refusals_total", "Requests that found no room in a pot, by pot.", ("pot",)
        )
        metrics.gauge("tiered_pot_held", "What is taken of each pot that all clients share.", ("pot",)).set_function(
            lambda: {(name,): float(each.held) for name, each in self._holdings.items()}
        )
        metrics.gauge("tiered_pot_bound", "The size of each pot that all clients share.", ("pot",)).set_function(
            lambda: {(name,): float(each.bound) for name, each in self._holdings.items()}
        )
        metrics.gauge(
            "tiered_pot_largest", "What the largest holder has of each pot, by its name.", ("pot", "holder")
        ).set_function(self._find_largest)

    def watch(self, holdings: Holdings) -> Holdings:
        """Reports the level and the refusals of a pot from now on. Returns its holdings."""
        self._holdings[holdings.pot.name] = holdings
        holdings.on_refused = self.report
        return holdings

    def describe(self) -> Iterator[str]:
        """Yields a sentence for each pot of which more than three quarters are taken."""
        for each in self._holdings.values():
            if each.is_scarce:
                greediest, own = each.find_greediest()
                most = f", {own} of them by {greediest}" if greediest else ""
                share = find_share(each.bound, each.held)
                yield f"{each.describe()}{most}: a holder that has {share} or more gets no more"

    def _find_largest(self) -> dict[tuple[str, ...], float]:
        largest = {name: each.find_greediest() for name, each in self._holdings.items()}
        return {(name, holder): float(own) for name, (holder, own) in largest.items() if own}

    def report(self, pot: Pot, holder: str, why: str) -> None:
        """Counts a refusal, and reports the first one of each holder, again after ten minutes."""
        place, now_ns = (pot.name, holder), self._clock.mono_ns()
        self._refusals.inc(1, pot.name)
        if now_ns - self._reported.get(place, now_ns - REPEAT_NS) < REPEAT_NS:
            return
        self._reported.pop(place, None)
        if len(self._reported) >= REPORTED_MAX:
            del self._reported[next(iter(self._reported))]
        self._reported[place] = now_ns
        log.warning("no room in a pot pot=%s holder=%s why=%s", pot.name, holder, why)
        self._audit.record_share(holder, pot.name, why)
