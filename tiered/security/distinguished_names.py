"""Names of certificates as principals: the distinguished name in the form of RFC 2253, as Kafka's default has it."""

from __future__ import annotations

from collections.abc import Sequence

Subject = Sequence[Sequence[tuple[str, str]]]
"""The name in a certificate, as Python's `ssl` gives it: its parts, each of attributes with a value."""

_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_OIDS = {"emailAddress": ("1.2.840.113549.1.9.1", 0x16), "serialNumber": ("2.5.4.5", 0x13)}
"""Attributes that RFC 2253 has no word for: number, and type of the encoded text."""
_SPECIAL = ',+"\\<>;'


def format_name(subject: Subject) -> str:
    """Returns the distinguished name of a subject: its last part first, each part `KEY=value`."""
    parts = ("+".join(_format_attribute(name, value) for name, value in part) for part in reversed(subject))
    return ",".join(parts)


def _format_attribute(name: str, value: str) -> str:
    if name in _OIDS:
        number, tag = _OIDS[name]
        text = value.encode()
        return f"{number}=#{bytes((tag, *_encode_length(len(text)))).hex()}{text.hex()}"
    escaped = "".join(f"\\{char}" if char in _SPECIAL else char for char in value)
    if value[:1] in ("#", " "):
        escaped = f"\\{escaped}"
    if len(value) > 1 and value.endswith(" "):
        escaped = f"{escaped[:-1]}\\ "
    return f"{_SHORT.get(name, name)}={escaped}"


def _encode_length(size: int) -> bytes:
    """Returns a length as DER has it."""
    if size < 128:
        return bytes((size,))
    text = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((0x80 | len(text),)) + text
