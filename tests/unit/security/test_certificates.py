"""Certificates of listeners: their facts, as another reader finds them, their states, and their replacement."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from tests.certificates import sign
from tiered.security.certificates import (
    DAY_MS,
    EXPIRED,
    EXPIRING,
    NOT_YET_VALID,
    VALID,
    ListenerCertificate,
    describe_problems,
    find_next_decision_ms,
    judge,
    refuse_replacement,
)
from tiered.security.distinguished_names import format_name
from tiered.security.x509 import OID_BYTES_MAX, Certificate, read_certificate

KEY = ec.generate_private_key(ec.SECP256R1())
ATTRIBUTES = {
    "commonName": NameOID.COMMON_NAME,
    "organizationName": NameOID.ORGANIZATION_NAME,
    "domainComponent": NameOID.DOMAIN_COMPONENT,
    "1.2.643.100.1": NameOID.OGRN,
}
DATES = st.datetimes(datetime(1950, 1, 1), datetime(2200, 1, 1)).map(lambda at: at.replace(microsecond=0, tzinfo=UTC))
TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x24F), min_size=1, max_size=40)
HOSTS = st.from_regex(r"[a-z]{1,9}(\.[a-z]{1,9}){0,3}", fullmatch=True).map(x509.DNSName)
ADDRESSES = st.ip_addresses().map(x509.IPAddress)
LIFE = Certificate("CN=a", (), 100 * DAY_MS, 190 * DAY_MS, "01")


@given(
    attributes=st.lists(st.tuples(st.sampled_from(sorted(ATTRIBUTES)), TEXTS), max_size=4),
    dates=st.lists(DATES, min_size=2, max_size=2).map(sorted),
    names=st.lists(HOSTS | ADDRESSES, max_size=4),
    serial=st.integers(1, 2**159 - 1),
)
def test_facts_are_those_that_another_reader_finds(
    attributes: list[tuple[str, str]],
    dates: list[datetime],
    names: list[x509.GeneralName],
    serial: int,
) -> None:
    name = x509.Name([x509.NameAttribute(ATTRIBUTES[kind], text) for kind, text in attributes])
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), serial, dates[0], dates[1])
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not attributes)
    made = builder.sign(KEY, hashes.SHA256())
    found = read_certificate(made.public_bytes(serialization.Encoding.DER))
    assert (found.not_before_ms, found.not_after_ms) == tuple(int(each.timestamp()) * 1000 for each in dates)
    kinds = {x509.DNSName: "DNS", x509.IPAddress: "IP"}
    assert found.names == tuple(f"{kinds[type(each)]}:{each.value}" for each in names)
    assert int(found.serial, 16) == serial
    assert found.subject == format_name([[each] for each in attributes])


def test_subject_has_the_form_of_principals() -> None:
    signed = sign("CN=a,OU=b\\+c,O=d", sign("CN=authority"))
    found = read_certificate(signed.certificate.public_bytes(serialization.Encoding.DER))
    assert found.subject == "CN=a,OU=b\\\\\\+c,O=d"


@given(st.binary(max_size=300), st.integers(0, 700))
def test_damaged_certificate_is_read_or_refused(noise: bytes, at: int) -> None:
    whole = sign("CN=a", sign("CN=authority")).certificate.public_bytes(serialization.Encoding.DER)
    for data in (noise, whole[:at], whole[:at] + noise + whole[at + len(noise) :]):
        try:
            read_certificate(data)
        except ValueError as error:
            assert str(error)


def test_number_of_an_object_is_read_up_to_a_length() -> None:
    """The time to read a number grows with the square of its length."""
    for size, why in ((OID_BYTES_MAX, ""), (OID_BYTES_MAX + 1, "a number of an object is too long")):
        attribute = _element(0x06, b"\xff" * (size - 1) + b"\x01") + _element(0x0C, b"a")
        subject = _element(0x30, _element(0x31, _element(0x30, attribute)))
        dates = _element(0x30, 2 * _element(0x17, b"250101000000Z"))
        parts = _element(0x02, b"\x01") + _element(0x30, b"") * 2 + dates + subject + _element(0x30, b"")
        whole = _element(0x30, _element(0x30, parts))
        if why:
            with pytest.raises(ValueError, match=why):
                read_certificate(whole)
        else:
            assert read_certificate(whole).subject.endswith("=a")


def _element(tag: int, body: bytes) -> bytes:
    return bytes((tag, 0x82)) + len(body).to_bytes(2, "big") + body


@pytest.mark.parametrize(
    ("day", "warning_days", "state"),
    [
        (99.9, 14, NOT_YET_VALID),
        (100, 14, VALID),
        (175.9, 14, VALID),
        (176.1, 14, EXPIRING),
        (176.1, 13, VALID),
        (159.9, 3650, VALID),
        (160.1, 3650, EXPIRING),
        (189.9, 0, VALID),
        (190, 14, EXPIRING),
        (190.1, 14, EXPIRED),
    ],
)
def test_state_follows_from_the_dates_and_the_setting(day: float, warning_days: int, state: str) -> None:
    assert judge(LIFE, int(day * DAY_MS), warning_days) == state


@pytest.mark.parametrize(
    ("old", "new", "words", "again"),
    [
        ((100, 200), (100, 300), "", None),
        ((100, 200), (100, 120), "(CN=a) expired at 1970-05-01T00:00:00+00:00", 200),
        ((100, 200), (160, 300), "(CN=a) is not valid before 1970-06-10T00:00:00+00:00", 160),
        ((100, 200), (250, 300), "is not valid before", 200),
        ((100, 140), (100, 120), "", None),
        ((160, 200), (170, 300), "", None),
    ],
)
def test_wrong_dates_count_only_while_the_old_certificate_is_valid(
    old: tuple[int, int], new: tuple[int, int], words: str, again: int | None
) -> None:
    before, after = (LIFE._replace(not_before_ms=a * DAY_MS, not_after_ms=b * DAY_MS) for a, b in (old, new))
    why = refuse_replacement(before, after, 150 * DAY_MS)
    assert words in why and bool(why) == bool(words)
    if again is not None:
        at_ms = find_next_decision_ms(before, after, 150 * DAY_MS)
        assert at_ms // DAY_MS == again
        assert refuse_replacement(before, after, at_ms) == "" and refuse_replacement(before, after, at_ms - 1) != ""


@pytest.mark.parametrize(
    ("day", "words"),
    [
        (99, "the certificate of listener SSL (CN=a) is not valid before 1970-04-11T00:00:00+00:00: clients and"),
        (189, "expires at 1970-07-10T00:00:00+00:00, in 1.0 days: tiered.certificate.expiry.warning.days is 14"),
        (
            191,
            "the certificate of listener SSL (CN=a) expired at 1970-07-10T00:00:00+00:00: clients and brokers refuse",
        ),
    ],
)
def test_each_state_but_valid_is_a_problem(day: int, words: str) -> None:
    listed = [ListenerCertificate("SSL", LIFE)]
    (problem,) = describe_problems(listed, day * DAY_MS, 14)
    assert words in problem
    assert list(describe_problems(listed, 150 * DAY_MS, 14)) == []
