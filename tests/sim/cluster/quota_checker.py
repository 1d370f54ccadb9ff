"""I28: between two changes of its quota, a scope of clients uses its quota, that of the window, and a few requests.

The checker knows the quotas that each broker has applied, and since when. It finds the quota of a client by a look at
every level, and adds up what the clients got replies for. A request counts between its sending and its reply. A client
without a quota since the request was sent gets no pause. Hooks as in `observer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from tests.sim.cluster.model_of_copies import ReportFinding
from tests.sim.cluster.observer import acting_node, patched
from tiered.access.client_quotas import ClientQuotas
from tiered.metadata.image import Image
from tiered.quotas.entity import QuotaEntity

KEY = "producer_byte_rate"
Quotas = Mapping[QuotaEntity, Mapping[str, float]]
LEVELS: tuple[tuple[str | None, str | None], ...] = (
    ("name", "name"), ("name", "default"), ("name", None),
    ("default", "name"), ("default", "default"), ("default", None),
    (None, "name"), (None, "default"),
)  # fmt: skip
"""The part for the user and the part for the client id, the level that wins first."""


class Scope(NamedTuple):
    """The clients whose use counts together, and their quota."""

    user: str
    client_id: str
    bound: float


class Use(NamedTuple):
    """One request that got a reply."""

    sent_ns: int
    replied_ns: int
    size: int


class AppliedQuotas(NamedTuple):
    """The quotas of a broker from `since_ns` on."""

    since_ns: int
    quotas: Quotas


def find_scope(quotas: Quotas, user: str, client_id: str) -> Scope | None:
    """Returns the quota of a client by a look at every level, None if it has none."""
    for user_part, client_part in LEVELS:
        parts = {}
        if client_part is not None:
            parts["client-id"] = client_id if client_part == "name" else None
        if user_part is not None:
            parts["user"] = user if user_part == "name" else None
        bound = quotas.get(tuple(sorted(parts.items())), {}).get(KEY)
        if bound is not None:
            return Scope("" if user_part is None else user, "" if client_part is None else client_id, bound)
    return None


class QuotaChecker:
    """The quotas of all brokers, and the use of each client. `window_seconds` is that of the rate; `connections` is the
    number of those that send to one broker."""

    def __init__(
        self, report: ReportFinding, now: Callable[[], int], *, window_seconds: float, connections: int
    ) -> None:
        self.changes = self.paused = self.unlimited = 0
        self._report = report
        self._now = now
        self._window_seconds = window_seconds
        self._connections = connections
        self._applied: dict[int, list[AppliedQuotas]] = {}
        self._uses: dict[tuple[int, str, str], list[Use]] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observes everything within the context."""
        with ExitStack() as stack:
            stack.enter_context(patched(ClientQuotas, "__init__", self._begin))
            stack.enter_context(patched(ClientQuotas, "apply_image", self._apply))
            yield

    def check_reply(self, node: int, user: str, client_id: str, use: Use, pause_ms: int) -> None:
        """Counts a request. Reports a pause of a client that had no quota since the request was sent."""
        self._uses.setdefault((node, user, client_id), []).append(use)
        self.paused += pause_ms > 0
        if pause_ms > 0 and not any(find_scope(each, user, client_id) for each in self._find_quotas(node, use)):
            self._report("I28", f"b{node} gives {client_id} of {user} a pause of {pause_ms} ms, and it has no quota")
        self.unlimited += pause_ms == 0

    def check_uses(self) -> None:
        """Reports each scope that used more than it may in a time without a change of its quota."""
        for node, applied in self._applied.items():
            clients = [(user, client_id) for at, user, client_id in self._uses if at == node]
            for user, client_id in clients:
                self._check_client(node, applied, user, client_id)

    def _check_client(self, node: int, applied: list[AppliedQuotas], user: str, client_id: str) -> None:
        ends = [*(each.since_ns for each in applied[1:]), self._now()]
        first = 0
        while first < len(applied):
            scope, last = find_scope(applied[first].quotas, user, client_id), first
            while last + 1 < len(applied) and find_scope(applied[last + 1].quotas, user, client_id) == scope:
                last += 1
            if scope is not None:
                self._check_scope(node, scope, applied[first].since_ns, ends[last], last - first)
            first = last + 1

    def _check_scope(self, node: int, scope: Scope, begin_ns: int, end_ns: int, changes: int) -> None:
        """I28 from any time on, between two changes of the quota of a scope. Each change of another quota ends the
        pauses, so that each connection may send one more request."""
        uses = sorted(
            (use.replied_ns, use.sent_ns, use.size)
            for (at, user, client_id), known in self._uses.items()
            if at == node and scope.user in ("", user) and scope.client_id in ("", client_id)
            for use in known
            if begin_ns <= use.sent_ns and use.replied_ns <= end_ns
            if all(find_scope(each, user, client_id) == scope for each in self._find_quotas(node, use))
        )
        most = max((size for _, _, size in uses), default=0) * self._connections * (2 + changes)
        for start_ns in sorted({sent_ns for _, sent_ns, _ in uses})[:: max(1, len(uses) // 50)]:
            total = 0
            for replied_ns, sent_ns, size in uses:
                if sent_ns < start_ns:
                    continue
                total += size
                allowed = scope.bound * ((replied_ns - start_ns) / 1e9 + self._window_seconds) + most
                if total > allowed:
                    seconds = (replied_ns - start_ns) / 1e9
                    what = f"{total} bytes in {seconds:.3f} s, {allowed:.0f} are allowed"
                    self._report("I28", f"b{node} takes from {scope} {what}")
                    return

    def _find_quotas(self, node: int, use: Use) -> Iterator[Quotas]:
        """Yields the quotas that a broker had at any time between a request and its reply, the newest first."""
        for each in reversed(self._applied.get(node, [])):
            if each.since_ns <= use.replied_ns:
                yield each.quotas
            if each.since_ns < use.sent_ns:
                return

    def _on_applied(self, node: int, quotas: Quotas) -> None:
        self.changes += 1
        self._applied.setdefault(node, []).append(AppliedQuotas(self._now(), quotas))

    def _begin(self, original: Any) -> Any:
        def begin(quotas: ClientQuotas, *args: Any) -> None:
            original(quotas, *args)
            self._on_applied(acting_node(), {})

        return begin

    def _apply(self, original: Any) -> Any:
        def apply_image(quotas: ClientQuotas, image: Image) -> None:
            original(quotas, image)
            known = self._applied[acting_node()]
            if known[-1].quotas != image.quotas:
                self._on_applied(acting_node(), image.quotas)

        return apply_image
