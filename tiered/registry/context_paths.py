"""Addresses below `/contexts/CONTEXT`: the same addresses without it, for subjects of that context.

Clients that have the context in the URL of the registry need not name it in their subjects.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from tiered.registry.subjects import DEFAULT_CONTEXT

PREFIX = "/contexts/"
_SUBJECT_AT = {"subjects": 1, "compatibility": 2, "config": 1, "mode": 1}
"""The segment that names a subject, by the first segment of an address."""
_PARAMETERS = {"subjects": "subjectPrefix", "schemas": "subjectPrefix", "ids": "subject"}


def strip_context(target: str) -> str:
    """Returns the target of a request without its context, which its subject has instead. Returns any other target as
    it is."""
    path, mark, query = target.partition("?")
    named, _, rest = path.removeprefix(PREFIX).partition("/")
    if not path.startswith(PREFIX) or not rest:
        return target
    context = unquote(named).strip(":")
    if not context.startswith("."):
        context = f".{context}"
    if context == DEFAULT_CONTEXT:
        return f"/{rest}{mark}{query}"
    segments, prefix = rest.split("/"), quote(f":{context}:", safe="")
    at = _SUBJECT_AT.get(segments[0])
    if at is not None and len(segments) > at:
        if not unquote(segments[at]).startswith(":."):
            segments[at] = prefix + segments[at]
    elif segments[0] in ("config", "mode"):
        segments.append(prefix)
    else:
        kind = "ids" if segments[:2] == ["schemas", "ids"] else segments[0] if len(segments) == 1 else ""
        query = _qualify_query(query, _PARAMETERS.get(kind, ""), prefix)
    return f"/{'/'.join(segments)}{'?' if query else ''}{query}"


def _qualify_query(query: str, name: str, prefix: str) -> str:
    """Returns a query whose parameter `name` has the context in front."""
    if not name:
        return query
    pairs = [each for each in query.split("&") if each]
    for at, pair in enumerate(pairs):
        key, _, value = pair.partition("=")
        if unquote(key) == name:
            if not unquote(value).startswith(":"):
                pairs[at] = f"{key}={prefix}{value}"
            return "&".join(pairs)
    return "&".join([*pairs, f"{name}={prefix}"])
