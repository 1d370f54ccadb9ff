"""The one rule for the fields of a JSON body: a field that is not known is refused, with the ones that are.

A field with a typo would otherwise count as missing: a value becomes null, which deletes its key in a compacted topic,
and a setting goes back to its default.
"""

from __future__ import annotations

import difflib
from collections.abc import KeysView, Mapping, Set
from typing import Any

from tiered_api.http.exchange.errors import BAD_REQUEST, HttpError


def fields(*names: str) -> KeysView[str]:
    """Returns the names as a set that keeps their order, as messages show them."""
    return dict.fromkeys(names).keys()


def check_fields(given: Mapping[str, Any], allowed: Set[str], what: str, code: int = BAD_REQUEST) -> None:
    """Raises `HttpError` with `code` if the object `given` has a field that is not in `allowed`."""
    if given.keys() <= allowed:
        return
    unknown = next(name for name in given if name not in allowed)[:80]
    near = difflib.get_close_matches(unknown, allowed, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise HttpError(code, f"{what} has no field {unknown!r}{hint}; there are {', '.join(allowed)}")
