"""Regular expressions of consumer groups over the names of topics, as in Kafka: RE2, which takes linear time.

The engine is the extra `regex`. Without it, such a subscription is refused in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from tiered.errors import Code, Refused

ENGINE = "re2"
MEMORY_BYTES = 1 << 20
"""Memory that an expression may take. A larger one is refused."""


def make_matcher(find_names: Callable[[], Iterable[str]]) -> Callable[[str], frozenset[str]] | None:
    """Returns a function that returns the names which an expression matches as a whole; None without an engine. It
    raises `Refused` with INVALID_REGULAR_EXPRESSION for a text that is no expression."""
    if find_spec(ENGINE) is None:
        return None

    def match(regex: str) -> frozenset[str]:
        matches = _compile(regex).fullmatch
        return frozenset([name for name in find_names() if matches(name) is not None])

    return match


@lru_cache(maxsize=64)
def _compile(regex: str) -> Any:
    import re2  # most clusters have no such subscription

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        (what,) = error.args
        said = what.decode(errors="replace") if isinstance(what, bytes) else str(what)
        why = f"SubscribedTopicRegex `{regex[:200]}` is not a valid regular expression: {said[:200]}"
        raise Refused(Code.INVALID_REGULAR_EXPRESSION, why) from None
