"""I29: each request that is served was allowed by the ACLs of its broker, and each that is refused was not.

The checker knows the ACLs that each broker has applied, and since when. It looks at every ACL for each decision. A
request may be judged by the ACLs of any instant between its sending and its reply. Hooks as in `observer`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from tests.sim.cluster.model_of_copies import ReportFinding
from tests.sim.cluster.observer import acting_node, patched
from tests.unit.security.naive_decisions import decide_naively
from tiered.access.authorization import Authorization
from tiered.metadata.image import Image
from tiered.security.acls import Acl, Operation, ResourceType
from tiered.security.principal import Caller


class AskedRight(NamedTuple):
    """A right that a request needs."""

    caller: Caller
    operation: Operation
    topic: str


class AppliedAcls(NamedTuple):
    """The ACLs of a broker from `since_ns` on."""

    since_ns: int
    acls: Collection[Acl]


def is_allowed(acls: Collection[Acl], asked: AskedRight) -> bool:
    """Returns the decision by a look at every ACL. Without any ACL for a topic nobody may use it."""
    return decide_naively(acls, asked.caller, asked.operation, ResourceType.TOPIC, asked.topic) or False


class RightsChecker:
    """The ACLs of all brokers. A broker that starts has none until it reads the metadata log."""

    def __init__(self, report: ReportFinding, now: Callable[[], int]) -> None:
        self.served = self.refused = self.changes = 0
        self._applied: dict[int, list[AppliedAcls]] = {}
        self._report = report
        self._now = now

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observes everything within the context."""
        with ExitStack() as stack:
            stack.enter_context(patched(Authorization, "__init__", self._begin))
            stack.enter_context(patched(Authorization, "apply_image", self._apply))
            yield

    def on_applied(self, node: int, acls: Collection[Acl]) -> None:
        """A broker decides by these ACLs from now on."""
        self.changes += 1
        self._applied.setdefault(node, []).append(AppliedAcls(self._now(), acls))

    def check_reply(self, node: int, asked: AskedRight, *, is_served: bool, sent_ns: int) -> None:
        """I29: at some instant since `sent_ns` the broker had a reason to serve the request, or to refuse it."""
        self.served += is_served
        self.refused += not is_served
        if any(is_allowed(each, asked) is is_served for each in self._find_acls(node, sent_ns)):
            return
        caller, what = f"{asked.caller.principal} at {asked.caller.host}", f"{asked.operation.name} of {asked.topic}"
        done = "serves" if is_served else "refuses"
        self._report("I29", f"b{node} {done} {what} to {caller}, against all ACLs that it had since {sent_ns / 1e9}")

    def _find_acls(self, node: int, since_ns: int) -> Iterator[Collection[Acl]]:
        """Yields the ACLs that a broker had at any time since then, the newest first."""
        for each in reversed(self._applied.get(node, [])):
            yield each.acls
            if each.since_ns < since_ns:
                return

    def _begin(self, original: Any) -> Any:
        def begin(authorization: Authorization, *args: Any) -> None:
            original(authorization, *args)
            self.on_applied(acting_node(), ())

        return begin

    def _apply(self, original: Any) -> Any:
        def apply_image(authorization: Authorization, image: Image) -> None:
            original(authorization, image)
            known = self._applied[acting_node()]
            if known[-1].acls is not image.acls:
                self.on_applied(acting_node(), image.acls)

        return apply_image
