"""Refuses requests that a web page of another site makes in the browser of a user who can reach the broker.

1. A request names the broker by an address, `localhost`, a host name of the broker, or one of
   `tiered.http.allowed.hosts`. Any other name may be a page's own, resolved to the broker (DNS rebinding).
2. A page that makes a request comes from the broker itself, or from one of `tiered.http.allowed.hosts`. But a link of
   any page may lead a person to the console: its page holds no data, and no other page can read or frame it.

No response allows a page anything (CORS), so browsers refuse each request that no HTML form could make.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from tiered.config.listeners import parse_host_port
from tiered.config.settings import Settings, parse_address
from tiered_api.http.exchange.errors import HttpError

SETTING = "tiered.http.allowed.hosts"
ANY = "*"
OWN_PAGES = ("same-origin", "none")
"""Values of Sec-Fetch-Site for a page of the broker and for a user."""
HOST_CACHE_MAX = 1_000
"""Most Host headers in the cache; at this limit, the cache is cleared."""
_HOST = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")


class AllowedHosts:
    """The host names of one broker, and the sites whose pages may use the broker."""

    def __init__(self, settings: Settings, hostname: str) -> None:
        self._allowed = frozenset(name_of(each) for each in settings.tiered_http_allowed_hosts)
        self._names = self._allowed | {name_of(each) for each in (*broker_host_names(settings), hostname, "localhost")}
        self._accepted = {""}
        """Host headers that were accepted before. No page can send an empty one."""

    def check(self, headers: Mapping[str, str], version: tuple[int, int], *, is_console: bool = False) -> None:
        """Raises HttpError 400 for a Host that is missing or malformed, 403 for one that is not the broker's, and 403
        for a request of another site's page."""
        host = headers.get("Host")
        if host is None and version >= (1, 1):
            raise HttpError(400, "an HTTP/1.1 request has to name its Host", close=True)
        if host is not None and host not in self._accepted:
            self._check_host(host)
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
        if is_console and origin is None and headers.get("Sec-Fetch-Dest") == "document":
            return
        if origin is not None or site is not None:
            self._check_page(origin, site, host or "")

    def _check_host(self, host: str) -> None:
        if not _HOST.fullmatch(host):
            raise HttpError(400, "Host is not a host name or address with an optional port", close=True)
        name = name_of(host)
        if ANY not in self._allowed and name not in self._names and not is_address(name):
            raise HttpError(403, f"this broker does not have the name {name[:80]!r}; if it should, add it to {SETTING}")
        if len(self._accepted) >= HOST_CACHE_MAX:
            self._accepted = {""}
        self._accepted.add(host)

    def _check_page(self, origin: str | None, site: str | None, host: str) -> None:
        if origin is not None:
            place = origin.partition("://")[2]
            if place and name_of(place) in self._allowed:
                return
            if not place or place.lower() != host.lower():
                words = f"pages of {origin[:80]!r} may not use this broker"
                raise HttpError(403, f"{words}; if they should, add the host to {SETTING}")
        if site is not None and site not in OWN_PAGES:
            raise HttpError(403, f"pages of other sites may not use this broker; {SETTING} names those that may")


def broker_host_names(settings: Settings) -> list[str]:
    """Returns the host names in the broker's settings: of its listeners, and those that it advertises. Addresses are
    left out, because they need no permission."""
    advertised = (text.partition("://")[2] for text in (*settings.listeners, *settings.advertised_listeners))
    places = [place[0] for text in (*advertised, settings.kafka) if (place := parse_host_port(text))]
    advertised_http = name_of(settings.resolve_advertised_http(0).partition("://")[2])
    found = (parse_address(settings.http_address, "http")[0], advertised_http, *places)
    return [each for each in found if each and not is_address(each)]


def name_of(host: str) -> str:
    """Returns the host name or address in `host[:port]`, without the brackets of IPv6, in a form that can be
    compared."""
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
    return name.strip("[]").removesuffix(".").lower()


def is_address(name: str) -> bool:
    """True if `name` is an IP address, which no page can point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
