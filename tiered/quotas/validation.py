"""The quotas that an entity may have, with Kafka's refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from tiered.errors import Code, Refused
from tiered.quotas.entity import CLIENT_ID, IP, TYPES, USER

PRODUCER_BYTE_RATE = "producer_byte_rate"
"""Bytes of Produce requests a second."""
CONSUMER_BYTE_RATE = "consumer_byte_rate"
"""Bytes of Fetch responses a second."""
REQUEST_PERCENTAGE = "request_percentage"
"""Share of the time of a thread that requests may take, in percent."""
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
"""Changes of metadata a second: created and deleted partitions (KIP-599), and all others (`change_costs`)."""
STORE_REQUEST_RATE = "store_request_rate"
"""Requests to the bucket a second that requests of clients cause. Kafka has no such quota."""
CONNECTION_CREATION_RATE = "connection_creation_rate"
"""New connections a second (KIP-612)."""

_LONG_MAX, _INT_MAX = 2.0**63, 2.0**31 - 1
_USER_KEYS: Mapping[str, tuple[float, str] | None] = {
    PRODUCER_BYTE_RATE: (_LONG_MAX, "a LONG"),
    CONSUMER_BYTE_RATE: (_LONG_MAX, "a LONG"),
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
    STORE_REQUEST_RATE: None,
}
"""Largest value of a whole number, with its type in Kafka's words; None for a value that may have fractions."""
_IP_KEYS: Mapping[str, tuple[float, str] | None] = {CONNECTION_CREATION_RATE: (_INT_MAX, "an INT")}
NAME_MAX = 255
"""Most characters of a name."""


def find_entity_fault(parts: Sequence[tuple[str, str | None]]) -> Refused | None:
    """Returns the reason why there can be no such entity, or None."""
    if not parts:
        return _invalid("Invalid empty client quota entity")
    kinds = dict[str, str | None]()
    for kind, name in parts:
        if kind in kinds:
            return _invalid(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in TYPES:
            return _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            return _invalid(f"Empty {kind} not supported")
        if name is not None and len(name) > NAME_MAX:
            return _invalid(f"The name of a {kind} has {NAME_MAX} characters at most")
        kinds[kind] = name
    if IP in kinds:
        if USER in kinds or CLIENT_ID in kinds:
            return _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
        if kinds[IP] is not None and read_ip(kinds[IP] or "") is None:
            return _invalid(f"{kinds[IP]} is not a valid IP: names of hosts have no quotas")
    return None


def find_value_fault(kinds: Sequence[str], key: str, value: float) -> Refused | None:
    """Returns the reason why an entity of these types cannot have a quota, or None."""
    keys = _IP_KEYS if IP in kinds else _USER_KEYS
    if key not in keys:
        return _invalid(f"Invalid configuration key {key}")
    if not value > 0:
        return _invalid(f"Quota {key} must be greater than 0")
    whole = keys[key]
    if whole is None:
        return None if value != float("inf") else _invalid(f"Quota {key} must be finite")
    most, kind = whole
    if value > most:
        return _invalid(f"Proposed value for {key} is too large for {kind}.")
    return _invalid(f"{key} cannot be a fractional value.") if abs(value - round(value)) > 1e-6 else None


def read_ip(text: str) -> str | None:
    """Returns an address in the form that hosts of connections have, or None if the text is none."""
    try:
        return ip_address(text).compressed
    except ValueError:
        return None


def _invalid(why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, why)
