"""The routes and their look-up. A route is data: the same table serves requests and makes `/openapi.json`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module

from aiohttp import web

from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.request import HttpRequest, percent_decode

Handler = Callable[[HttpRequest], Awaitable[web.StreamResponse]]

MATCH_CACHE_MAX = 4096
"""Most paths in the cache; at this limit, the cache is cleared."""
CACHED_PATH_MAX = 512
OBJECT_TYPES = (media_types.V2, media_types.JSON)
"""Media types that a body of a route may not have."""


@dataclass(frozen=True)
class Query:
    """One query parameter, as the documentation shows it."""

    name: str
    kind: str
    description: str


@dataclass(frozen=True)
class Route:
    """One operation. `path` has `{argument}` segments; a last one `{argument...}` stands for all segments that follow.
    `request_types` and `response_types` are media types,
    `request_schema` and `response_schema` names in `openapi.SCHEMAS`. `handler` is MODULE:FUNCTION below
    `tiered_api.http`. The function's docstring is the summary."""

    method: str
    path: str
    handler: str
    status: int = 200
    query: tuple[Query, ...] = ()
    request_types: tuple[str, ...] = ()
    request_schema: str = ""
    response_types: tuple[str, ...] = (media_types.JSON,)
    response_schema: str = ""

    @cached_property
    def operation(self) -> str:
        """The handler's name: it is unique, and metrics use it."""
        module, _, function = self.handler.partition(":")
        package = module.partition(".")[0]
        return f"{package}_{function}" if package in ("v2", "v3") else function

    @cached_property
    def handle(self) -> Handler:
        """The handler. It is imported for its first request, as those of the Kafka protocol are: a broker serves few
        of its routes."""
        module, _, function = self.handler.partition(":")
        handle: Handler = getattr(import_module(f"tiered_api.http.{module}"), function)
        return handle

    def check_body_type(self, request: HttpRequest) -> None:
        """Raises `HttpError` 415 if the route does not accept the Content-Type. Every request that changes something
        needs one, also without a body. So browsers send a preflight request for pages of other sites (CORS), which is
        refused. For a DELETE they always send one."""
        kind = request.headers.get("Content-Type")
        if request.method in ("GET", "HEAD"):
            if kind is None or not self.request_types:
                return
        elif request.method == "DELETE" and not request.body_exists:
            return
        media_types.body_type(kind, self.request_types or OBJECT_TYPES)


@dataclass
class _PathNode:
    """One node of the tree of paths."""

    children: dict[str, _PathNode] = field(default_factory=dict)
    argument: str = ""
    wildcard: _PathNode | None = None
    rest: _PathNode | None = None
    """The routes of all longer paths."""
    routes: dict[str, Route] = field(default_factory=dict)


Match = tuple[dict[str, Route], dict[str, str]]


class RouteTable:
    """All routes, found segment by segment. A segment is decoded after the path is split, so `%2F` never splits."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _PathNode()
        self._match_cache: dict[str, Match] = {}
        for route in self.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.endswith("...}"):
                node.rest = node.rest or _PathNode(argument=segment[1:-4])
                node = node.rest
            elif segment.startswith("{"):
                node.wildcard = node.wildcard or _PathNode(argument=segment[1:-1])
                node = node.wildcard
                if node.argument != segment[1:-1]:
                    raise ValueError(f"{route.path}: this argument is {node.argument} in another route")
            else:
                node = node.children.setdefault(segment, _PathNode())
        if route.method in node.routes:
            raise ValueError(f"two routes for {route.method} {route.path}")
        node.routes[route.method] = route

    def match(self, method: str, target: str) -> tuple[Route, dict[str, str]]:
        """Returns the route and its path arguments. Raises `HttpError` 404 without a route, 405 with `Allow` for
        another method."""
        path = target.partition("?")[0]
        found = self._match_cache.get(path)
        if found is None:
            found = self._find_match(path)
            if len(self._match_cache) >= MATCH_CACHE_MAX:
                self._match_cache.clear()
            if len(path) <= CACHED_PATH_MAX:
                self._match_cache[path] = found
        routes, arguments = found
        route = routes.get(method)
        if route is None and method == "HEAD":
            route = routes.get("GET")
        if route is None:
            allowed = sorted({*routes, "HEAD"} if "GET" in routes else routes)
            raise HttpError(405, f"this address does not support {method}", (("Allow", ", ".join(allowed)),))
        return route, arguments

    def _find_match(self, path: str) -> Match:
        if not path.startswith("/"):
            raise HttpError(400, "the request target has to be a path", close=True)
        segments = [percent_decode(raw) for raw in path.split("/")[1:]]
        found = _find(self._root, segments)
        if found is None:
            raise HttpError(404, "there is nothing at this address")
        return found


def _find(node: _PathNode, segments: list[str]) -> Match | None:
    """Returns the match of `segments` below `node`. A literal segment goes before an argument: "-" means all topics if
    there is such a route, else the topic of that name."""
    if not segments:
        return (node.routes, {}) if node.routes else None
    segment, rest = segments[0], segments[1:]
    if segment in node.children and (found := _find(node.children[segment], rest)):
        return found
    if node.wildcard is not None and segment and (found := _find(node.wildcard, rest)):
        return found[0], {node.wildcard.argument: segment, **found[1]}
    return (node.rest.routes, {node.rest.argument: "/".join(segments)}) if node.rest is not None else None
