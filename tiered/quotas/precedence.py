"""The quota that holds for a user and a client id, in Kafka's order of eight levels.

The level of a quota also says which connections count together. For a quota of a user these are all connections of the
user. For a default it is each name on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tiered.quotas.entity import CLIENT_ID, IP, USER, QuotaEntity
from tiered.quotas.validation import read_ip


class Limit(NamedTuple):
    """A quota in force, and whose use counts against it. The part that does not matter is ""."""

    bound: float
    user: str
    client_id: str
    key: str
    """Name of the quota."""


class QuotaTable:
    """All quotas of a cluster, by key. `defaults` hold for the default user where that has no such quota."""

    def __init__(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]], defaults: Mapping[str, float] | None = None
    ) -> None:
        self._by_key: dict[str, dict[QuotaEntity, float]] = {}
        self._by_ip: dict[str, float] = {}
        self._default_ip: float | None = None
        for entity, values in quotas.items():
            kinds = dict(entity)
            for key, value in values.items():
                if IP not in kinds:
                    self._by_key.setdefault(key, {})[entity] = value
                elif (name := kinds[IP]) is None:
                    self._default_ip = value
                else:
                    self._by_ip[read_ip(name) or name] = value
        for key, value in (defaults or {}).items():
            self._by_key.setdefault(key, {}).setdefault(((USER, None),), value)

    @property
    def has_client_quotas(self) -> bool:
        """True if any user or client id has a quota."""
        return bool(self._by_key)

    def find_limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Returns the limit of a user with a client id, or None if there is none."""
        quotas = self._by_key.get(key)
        if quotas is None:
            return None
        for user_part, counted_user in (((USER, user), user), ((USER, None), user), (None, "")):
            for client_part, counted_client in (
                ((CLIENT_ID, client_id), client_id),
                ((CLIENT_ID, None), client_id),
                (None, ""),
            ):
                entity = tuple(part for part in (client_part, user_part) if part is not None)
                bound = quotas.get(entity)
                if bound is not None:
                    return Limit(bound, counted_user, counted_client, key)
        return None

    def has_ip(self, host: str) -> bool:
        """True if an address has a quota of its own."""
        return host in self._by_ip

    def find_ip_bound(self, host: str) -> float | None:
        """Returns the new connections a second that an address may have, or None if there is no limit."""
        return self._by_ip.get(host, self._default_ip)
