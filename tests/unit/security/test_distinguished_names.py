"""Names of certificates: the forms of RFC 2253 that Java's X500Principal writes."""

from __future__ import annotations

import pytest

from tiered.security.distinguished_names import format_name


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (
            ((("countryName", "CH"),), (("organizationName", "Kranz"),), (("commonName", "alice"),)),
            "CN=alice,O=Kranz,C=CH",
        ),
        (((("commonName", 'a,b+c"d\\e<f>g;h'),),), 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        (((("commonName", " #a "),),), "CN=\\ #a\\ "),
        (((("commonName", "#a"),),), "CN=\\#a"),
        (((("commonName", " "),),), "CN=\\ "),
        (((("domainComponent", "org"),), (("domainComponent", "example"), ("userId", "u"))), "DC=example+UID=u,DC=org"),
        (((("emailAddress", "a@b"),),), "1.2.840.113549.1.9.1=#1603614062"),
        (((("emailAddress", "a" * 200),),), "1.2.840.113549.1.9.1=#1681c8" + "61" * 200),
        ((), ""),
    ],
)
def test_name_has_the_form_of_rfc_2253(subject: tuple[tuple[tuple[str, str], ...], ...], name: str) -> None:
    assert format_name(subject) == name
