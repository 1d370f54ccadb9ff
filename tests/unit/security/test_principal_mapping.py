"""Rules for the principals of certificates: Kafka's own examples, and what is refused."""

from __future__ import annotations

import pytest

from tiered.errors import Code, Refused
from tiered.security.principal import ANONYMOUS, Principal
from tiered.security.principal_mapping import map_name, map_subject, parse_mapping_rules

KAFKAS = ", ".join(
    (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    )
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        (KAFKAS, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (KAFKAS, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (KAFKAS, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (KAFKAS, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (KAFKAS, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz", r"Tkac\, Adam"),
        ("RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/", "CN=bob,O=x", "bob"),
        ("RULE:^CN=(.*)$/$1\n/", "CN=bob", "bob\n"),
        ("RULE:^CN=bob$/root/", "CN=alice", None),
        ("RULE:^CN=bob$/root/", "CN=bob", "root"),
        ("RULE:^CN=(b)(o)(b)$/$4-$12-$0/", "CN=bob", "$4-b2-CN=bob"),
        ("RULE:^CN=(b)|CN=(c)$/$1$2/", "CN=c", "c"),
        (r"RULE:^CN=a\/b$/\/\$1\\/", "CN=a/b", r"/$1\ "[:-1]),
        ("RULE:.*//", "CN=bob", None),
        ("", "CN=bob", None),
    ],
)
def test_first_rule_that_matches_the_name_makes_the_principal(rules: str, name: str, principal: str | None) -> None:
    assert map_name(parse_mapping_rules(rules), name) == principal


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        ("", 0),
        ("DEFAULT", 1),
        ("RULE://", 1),
        ("RULE:/.*/L", 1),
        ("  RULE:// ,  DEFAULT  ", 2),
        ("  RULE:  /     /U   ,DEFAULT  ", 2),
        ("  RULE:([A-Z]*)/$1/U   ,RULE:([a-z]+)/$1/,   DEFAULT  ", 3),
        (",   , , ,      , , ,   ", 0),
        (",,RULE://,,,DEFAULT,,", 2),
        ("RULE:a/b/,\n  DEFAULT", 2),
        (r"RULE:\/\\\(\)\n\t/\/\//", 1),
        (r"RULE:,RULE:,/,RULE:,\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, /DEFAULT/,DEFAULT", 5),
    ],
)
def test_rules_are_split_as_kafka_splits_them(rules: str, count: int) -> None:
    assert len(parse_mapping_rules(rules)) == count


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "DEFAULTS",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:^CN=(.*/$1/",
        r"RULE:^CN=(.)\1$/$1/",
        "RULE:^(?=CN).*$/x/",
        "RULE:^CN=(.*)$/${name}/",
        "RULE:" + "a" * 2000 + "/x/",
        "DEFAULT," * 101,
    ],
)
def test_rule_of_another_form_is_refused(rules: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_mapping_rules(rules)
    assert refused.value.code is Code.INVALID_CONFIG and refused.value.why.startswith("ssl.principal.mapping.rules: ")


def test_certificate_without_a_principal_is_refused() -> None:
    subject = ((("organizationName", "Kranz"),), (("commonName", "alice"),))
    assert map_subject("RULE:^CN=([^,]+).*$/$1/", subject) == Principal("User", "alice")
    assert map_subject("DEFAULT", subject) == Principal("User", "CN=alice,O=Kranz")
    assert map_subject("RULE:^CN=bob.*$/x/", ()) == ANONYMOUS
    with pytest.raises(Refused, match="CN=alice,O=Kranz"):
        map_subject("RULE:^CN=bob.*$/x/", subject)


@pytest.mark.parametrize("name", ["*", "ANONYMOUS", "admin "])
def test_certificate_whose_name_no_login_may_have_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="no login may have"):
        map_subject("RULE:^CN=([^,]+)$/$1/", ((("commonName", name),),))
