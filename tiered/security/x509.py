"""The facts of a certificate that an operator needs, read from its DER encoding (RFC 5280).

OpenSSL judges certificates. Python's `ssl` shows the fields of certificates of the other side only, so those of the own
certificate are read here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from tiered.security.distinguished_names import Subject, format_name

SEQUENCE, OID, UTC_TIME, OCTETS, VERSION, EXTENSIONS = 0x30, 0x06, 0x17, 0x04, 0xA0, 0xA3
EMAIL_NAME, DNS_NAME, URI_NAME, IP_NAME = 0x81, 0x82, 0x86, 0x87
SUBJECT_ALT_NAME = "2.5.29.17"
ATTRIBUTES = {
    "2.5.4.3": "commonName",
    "2.5.4.5": "serialNumber",
    "2.5.4.6": "countryName",
    "2.5.4.7": "localityName",
    "2.5.4.8": "stateOrProvinceName",
    "2.5.4.9": "streetAddress",
    "2.5.4.10": "organizationName",
    "2.5.4.11": "organizationalUnitName",
    "0.9.2342.19200300.100.1.1": "userId",
    "0.9.2342.19200300.100.1.25": "domainComponent",
    "1.2.840.113549.1.9.1": "emailAddress",
}
"""Names of attributes as Python's `ssl` has them. Others have their number."""
ENCODINGS = {0x1E: "utf-16-be", 0x1C: "utf-32-be", 0x14: "latin-1"}
"""Encodings of texts by their tags. All others are UTF-8, or ASCII."""
OID_BYTES_MAX = 128
"""The longest number of an object. The time to read one grows with the square of its length."""
KINDS = {EMAIL_NAME: "email", DNS_NAME: "DNS", URI_NAME: "URI"}


class Certificate(NamedTuple):
    """The facts of one certificate. Times are milliseconds since 1970."""

    subject: str
    """The name in the form of RFC 2253: `CN=broker,O=Example`."""
    names: tuple[str, ...]
    """Subject alternative names, such as `DNS:localhost` and `IP:127.0.0.1`."""
    not_before_ms: int
    not_after_ms: int
    serial: str
    """Serial number in hex."""

    @property
    def title(self) -> str:
        """The subject, or what else the certificate is known by."""
        return self.subject or ", ".join(self.names) or f"serial {self.serial}"


class _Element(NamedTuple):
    tag: int
    body: bytes


def read_certificate(der: bytes) -> Certificate:
    """Returns the facts of a certificate. Raises `ValueError` if it is none."""
    whole = next(_elements(der))
    parts = list(_elements(next(_elements(whole.body)).body))
    if parts and parts[0].tag == VERSION:
        del parts[0]
    if len(parts) < 6:
        raise ValueError("a certificate has six parts or more")
    serial, _, _, validity, subject = parts[:5]
    not_before, not_after = (_read_time(each) for each in _elements(validity.body))
    names: tuple[str, ...] = ()
    for each in parts[6:]:
        if each.tag == EXTENSIONS:
            names = tuple(_read_alternative_names(next(_elements(each.body)).body))
    return Certificate(format_name(_read_name(subject.body)), names, not_before, not_after, serial.body.hex())


def _elements(data: bytes) -> Iterator[_Element]:
    """Yields the elements that stand one after the other. Raises `ValueError` if there is none, or one is cut off."""
    at = 0
    while at < len(data) or not at:
        if len(data) < at + 2:
            raise ValueError("an element is cut off")
        tag, size, at = data[at], data[at + 1], at + 2
        if size >= 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        if not size <= len(data) - at:
            raise ValueError("an element is cut off")
        yield _Element(tag, data[at : at + size])
        at += size


def _read_time(element: _Element) -> int:
    text = element.body.decode("ascii")
    if element.tag == UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()) * 1000


def _read_name(body: bytes) -> Subject:
    return [[_read_attribute(each.body) for each in _elements(part.body)] for part in _elements(body)] if body else []


def _read_attribute(body: bytes) -> tuple[str, str]:
    kind, value = _elements(body)
    number = _read_oid(kind.body)
    return ATTRIBUTES.get(number, number), value.body.decode(ENCODINGS.get(value.tag, "utf-8"), "replace")


def _read_alternative_names(body: bytes) -> Iterator[str]:
    for extension in _elements(body):
        parts = list(_elements(extension.body))
        if _read_oid(parts[0].body) == SUBJECT_ALT_NAME:
            for name in _elements(next(_elements(parts[-1].body)).body):
                if name.tag == IP_NAME and len(name.body) in (4, 16):
                    yield f"IP:{ipaddress.ip_address(name.body)}"
                elif name.tag in KINDS:
                    yield f"{KINDS[name.tag]}:{name.body.decode('utf-8', 'replace')}"


def _read_oid(body: bytes) -> str:
    if not body or body[-1] & 0x80:
        raise ValueError("a number of an object is cut off")
    if len(body) > OID_BYTES_MAX:
        raise ValueError("a number of an object is too long")
    numbers, value = [], 0
    for byte in body:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
